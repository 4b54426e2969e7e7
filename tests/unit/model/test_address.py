from pathlib import Path

import pytest

from velostream.model.address import file_path, split_parameters


@pytest.mark.parametrize(
    ("uri", "address", "parameters"),
    [
        ("file:///d/x.csv", "file:///d/x.csv", {}),
        ("file:///d/x?.csv", "file:///d/x?.csv", {}),
        ("file:///d/x?.csv?Format=csv&delimiter=;", "file:///d/x?.csv", {"format": "csv", "delimiter": ";"}),
        ("x://y?a=1%20b&c=", "x://y", {"a": "1 b", "c": ""}),
        ('x://y?query="SELECT ""a"" & b"&n=\'x\'', "x://y", {"query": 'SELECT "a" & b', "n": "x"}),
    ],
)
def test_parameters_are_taken_off_the_address(uri, address, parameters):
    assert split_parameters(uri) == (address, parameters)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b.csv", "/a/b.csv"),
        ("file://localhost/a/b.csv", "/a/b.csv"),
        ("file://./b.csv", "b.csv"),
        ("file:b%20c.csv", "b c.csv"),
        ("b%20c.csv", "b%20c.csv"),
        ("file:///a/", "/a/"),
        ("/", "/"),
        ("file://~/x.csv", str(Path.home() / "x.csv")),
    ],
)
def test_the_path_of_a_file_uri(uri, path):
    assert file_path(uri) == path
