from velostream.model.confidential import concealed, public, shown_address


def test_what_http_shows_to_servers_is_shown_to_nobody_else():
    for name in ("http.headers.authorization", "http.headers.x-api-key", "http.headers.cookie", "http.params.key"):
        assert concealed(name, "s3cret") == "***"
    assert concealed("http.headers.accept", "text/csv") == "text/csv"
    assert shown_address("https://h/x?apikey=s3cret&page=2") == "https://h/x?apikey=***&page=2"
    hidden = "https://h/x?accessKey=***&sv=2&sig=***"
    assert shown_address("https://h/x?accessKey=s3cret&sv=2&sig=s3cret") == hidden
    statement = "INSERT INTO https://h/x?access_token=s3cret WITH ('http.headers.X-Api-Key' = 's3cret') SELECT 1"
    assert "s3cret" not in public(statement)
