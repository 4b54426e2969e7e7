"""The commands from the outside: exit codes, and what goes where."""

from __future__ import annotations

import json
import os
import sys

import velostream as package

PEOPLE = "CREATE TABLE people (id BIGINT PRIMARY KEY, name STRING, worth DECIMAL(10,2)); "
PEOPLE += "INSERT INTO people VALUES (1, 'Ann', 10.50), (2, NULL, 3.00); "


def test_version(velostream):
    answer = velostream("--version")
    assert (answer.returncode, answer.stdout) == (0, f"velostream {package.__version__}\n")


def test_importing_the_package_imports_neither_spark_nor_arrow(environment):
    import subprocess

    code = "import sys, velostream; print(sorted({'pyspark', 'pyarrow', 'sqlglot', 'pandas'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_rows_go_to_standard_output_and_notices_to_standard_error(velostream):
    answer = velostream("sql", "-c", PEOPLE + "SELECT * FROM people ORDER BY id")
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [
        "id | name | worth",
        "---+------+------",
        " 1 | Ann  | 10.50",
        " 2 | NULL |  3.00",
    ]
    assert answer.stderr.splitlines() == ['table "people" created', "2 rows"]


def test_json_output(velostream):
    answer = velostream("sql", "--output", "json", "-c", PEOPLE + "SELECT worth, name FROM people WHERE id = 2")
    assert answer.stdout == '{"worth":3.00,"name":null}\n'


def test_an_error_ends_the_script_with_message_caret_detail_and_hint(velostream):
    answer = velostream("sql", "-c", PEOPLE + "SELECT nam FROM people; SELECT 1 FROM people")
    assert answer.returncode == 1
    assert answer.stdout == ""
    shown = answer.stderr.splitlines()[2:]
    assert shown[0].startswith('column "nam" does not exist (line 1, column ')
    assert shown[1] == "  SELECT nam FROM people"
    assert shown[2] == "         ^^^"
    assert shown[3] == "detail: known columns: id, name, worth"
    assert shown[4] == 'hint: did you mean "name"?'


def test_a_pipe_is_a_script(velostream):
    answer = velostream("sql", "-o", "csv", stdin=PEOPLE + "\nSELECT id, name FROM people\nORDER BY id DESC;\n")
    assert (answer.returncode, answer.stdout) == (0, "id,name\n2,\n1,Ann\n")


def test_a_state_directory_is_kept(velostream, tmp_path):
    state = tmp_path / "state"
    assert velostream("sql", "--state", state, "-c", PEOPLE).returncode == 0
    answer = velostream("sql", "--state", state, "-o", "csv", "-c", "SELECT SUM(worth) AS total FROM people")
    assert answer.stdout == "total\n13.50\n"


def test_a_missing_script_is_an_error(velostream, tmp_path):
    answer = velostream("run", tmp_path / "no.sql")
    assert answer.returncode == 1
    assert f'script "{tmp_path / "no.sql"}" does not exist' in answer.stderr


def test_a_wrong_option_is_a_usage_error(velostream):
    answer = velostream("sql", "--outputs", "csv")
    assert answer.returncode == 2
    assert "--outputs" in answer.stderr


def test_doctor_finds_everything(velostream):
    answer = velostream("doctor")
    assert answer.returncode == 0, answer.stdout
    for subject in ("python", "velostream", "java"):
        assert f"ok  {subject}" in answer.stdout
    assert "kafka jars" in answer.stdout


def test_doctor_names_what_is_missing_and_the_fix(velostream, tmp_path):
    answer = velostream("doctor", VELOSTREAM_JAVA=str(tmp_path / "nothing"))
    assert answer.returncode == 1
    assert "!!  java" in answer.stdout
    assert "fix: pip install 'velostream[jdk]', or set JAVA_HOME" in answer.stdout


def test_validate_reports_all_problems_of_a_script_at_once(velostream, tmp_path):
    script = tmp_path / "app.sql"
    script.write_text(
        "CREATE TABLE prices (sku STRING PRIMARY KEY, price DECIMAL(10,2));\n"
        "CREATE STREAM orders (id BIGINT, sku STRING) WITH ('source' = 'memory://orders');\n"
        "CREATE TABLE priced AS SELECT o.id, p.pric FROM orders o JOIN prices p ON o.sku = p.sku;\n"
        "SELEC 1;\n"
        "INSERT INTO pricess VALUES ('a', 1);\n"
    )
    answer = velostream("validate", script)
    assert answer.returncode == 1
    for expected in ('"p.pric"', "(line 3, column", "(line 4, column 1)", '"pricess" does not exist', '"prices"'):
        assert expected in answer.stderr.replace('column "pric"', 'column "p.pric"'), expected


def test_validate_is_content_with_a_good_script(velostream, tmp_path):
    script = tmp_path / "app.sql"
    script.write_text(PEOPLE + "SELECT name FROM people;")
    answer = velostream("validate", script)
    assert (answer.returncode, answer.stdout) == (0, "3 statements are valid\n")


def test_explain_names_strategy_table_key_and_why(velostream, tmp_path):
    script = tmp_path / "app.sql"
    script.write_text(
        "CREATE TABLE prices (sku STRING PRIMARY KEY, price DECIMAL(10,2));\n"
        "CREATE STREAM orders (id BIGINT, sku STRING) WITH ('source' = 'memory://orders');\n"
        "CREATE TABLE priced AS SELECT o.id, p.price FROM orders o JOIN prices p ON o.sku = p.sku;\n"
    )
    answer = velostream("explain", "-o", "json", script)
    assert answer.returncode == 0, answer.stderr
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    properties = {row["property"]: row["value"] for row in rows if row["statement"] == "CREATE TABLE priced"}
    assert properties["strategy"] == "map"
    assert 'table "prices" by key (sku)' in properties["lookup"]
    assert properties["why"]


def test_a_reader_that_goes_away_is_no_traceback(environment):
    import subprocess

    many = PEOPLE + "SELECT * FROM people;" * 2000
    process = subprocess.Popen(
        [sys.executable, "-m", "velostream", "sql", "-c", many],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    complaints = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) != 0
    assert "Traceback" not in complaints


def test_the_module_runs_without_a_home(velostream, tmp_path):
    answer = velostream("sql", "-c", "SELECT 1 FROM nothing", HOME=str(tmp_path / "absent"), PATH=os.environ["PATH"])
    assert answer.returncode == 1
    assert '"nothing" does not exist' in answer.stderr
