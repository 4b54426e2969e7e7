from velostream.model.options import Options
from velostream.model.server import SERVER_OPTIONS, ServerAddress, server_and_table


def found(uri: str, **options: str) -> tuple[ServerAddress, str | None]:
    return server_and_table(uri, Options(options, SERVER_OPTIONS), schemes=("mysql",), port=3306)


def test_an_address_may_name_no_more_than_database_and_table():
    address, table = found("mysql://shop/orders", host="db")
    assert (address.host, address.database, table) == ("db", "shop", "orders")


def test_an_option_wins_over_its_part_of_the_address_and_no_other():
    address, table = found("mysql://joe:s3cret@old:3307/shop", host="replica")
    assert str(address) == "mysql://joe@replica:3307/shop"
    assert (address.password, table) == ("s3cret", None)
