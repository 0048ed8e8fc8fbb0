"""One block of settings, in the words of Iceberg for Spark and of pyiceberg: both mean the same tables."""

from pathlib import Path

import pytest

from aggregator.config import AggregatorSettings
from aggregator.lakehouse.spark.jars import AWS, ICEBERG, POSTGRESQL, SQLITE, Jar, jars_for
from aggregator.lakehouse.warehouse.catalog_settings import python_catalog, spark_catalog, spark_secrets
from shared.settings import SettingsError, parse_settings

TABLES = Path("/srv/muster/tables")


def lakehouse(block: str, directory: Path = Path("/etc/muster")) -> AggregatorSettings:
    text = f'[hub]\nservers = ["nats://hub"]\n[lakehouse]\npath = "{TABLES}"\n[lakehouse.catalog]\n{block}'
    return parse_settings(text, AggregatorSettings, directory / "aggregator.toml")


def test_by_default_both_open_one_file_below_the_tables() -> None:
    catalog = lakehouse("").lakehouse.catalog
    spark = spark_catalog(TABLES, catalog)
    assert spark["spark.sql.catalog.lake.uri"] == "jdbc:sqlite:/srv/muster/tables/catalog.db?busy_timeout=60000"
    assert spark["spark.sql.catalog.lake.warehouse"] == "file:///srv/muster/tables"
    python = python_catalog(TABLES, catalog)
    assert python["uri"].startswith("sqlite:///file:/srv/muster/tables/catalog.db?mode=ro&")
    assert python["warehouse"] == "file:///srv/muster/tables"


def test_postgresql_is_reached_by_both_with_the_secret_apart(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/word\n")
    catalog = lakehouse(
        'type = "postgresql"\nuri = "postgresql://db.example.net/muster?sslmode=require"\nuser = "muster"\n'
        'password_file = "password"\nwarehouse = "s3://lake/muster"\n'
        'properties = { "s3.endpoint" = "https://store.example.net", "client.region" = "us-east-1" }\n',
        tmp_path,
    ).lakehouse.catalog
    spark = spark_catalog(TABLES, catalog)
    assert spark["spark.sql.catalog.lake.type"] == "jdbc"
    assert spark["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://db.example.net/muster?sslmode=require"
    assert spark["spark.sql.catalog.lake.jdbc.user"] == "muster"
    assert "p@ss/word" not in str(spark)
    assert spark_secrets(catalog) == {"spark.sql.catalog.lake.jdbc.password": "p@ss/word"}
    python = python_catalog(TABLES, catalog)
    assert python["uri"] == "postgresql+psycopg2://muster:p%40ss%2Fword@db.example.net/muster?sslmode=require"
    for properties, prefix in ((spark, "spark.sql.catalog.lake."), (python, "")):
        assert properties[f"{prefix}warehouse"] == "s3://lake/muster"
        assert properties[f"{prefix}s3.endpoint"] == "https://store.example.net"
    assert spark["spark.sql.catalog.lake.io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    assert "io-impl" not in python


def test_whoever_only_reads_has_a_catalog_that_refuses_to_write() -> None:
    uri = "spark.sql.catalog.lake.uri"
    assert spark_catalog(TABLES, lakehouse("").lakehouse.catalog, read_only=True)[uri].endswith("&open_mode=1")
    block = 'type = "postgresql"\nuri = "postgresql://db.example.net/muster"\n'
    postgresql = spark_catalog(TABLES, lakehouse(block).lakehouse.catalog, read_only=True)
    assert postgresql[uri] == "jdbc:postgresql://db.example.net/muster?readOnly=true&readOnlyMode=always"


def test_a_rest_catalog_gets_what_the_block_says(tmp_path: Path) -> None:
    (tmp_path / "credential").write_text("id:secret\n")
    catalog = lakehouse(
        'type = "rest"\nuri = "https://catalog.example.net"\nwarehouse = "s3://lake/muster"\n'
        'secrets = { credential = "credential" }\n',
        tmp_path,
    ).lakehouse.catalog
    assert python_catalog(TABLES, catalog) == {
        "type": "rest",
        "uri": "https://catalog.example.net",
        "warehouse": "s3://lake/muster",
        "credential": "id:secret",
    }
    spark = spark_catalog(TABLES, catalog) | spark_secrets(catalog)
    assert {name.removeprefix("spark.sql.catalog.lake."): value for name, value in spark.items()} == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "type": "rest",
        "uri": "https://catalog.example.net",
        "warehouse": "s3://lake/muster",
        "cache-enabled": "false",
        "default-namespace": "muster",
        "credential": "id:secret",
    }


@pytest.mark.parametrize("name", ["lake#2", "what?", "50%25", "a%4Ab"])
def test_a_directory_that_readers_take_for_a_url_is_refused(name: str) -> None:
    text = '[hub]\nservers = ["nats://hub"]\n[lakehouse]\npath = '
    file = Path("/etc/muster/aggregator.toml")
    for written in (f'"{name}/tables"', f'"tables"\ncatalog.warehouse = "/srv/{name}"'):
        with pytest.raises(SettingsError, match=r"holds \?, # or % with two digits: name another directory") as refused:
            parse_settings(text + written, AggregatorSettings, file)
        assert name in str(refused.value)
    assert str(parse_settings(f'{text}"50% off [1] & more"', AggregatorSettings, file).lakehouse.path).endswith(
        "50% off [1] & more"
    )


def test_a_rest_catalog_calls_its_warehouse_as_it_likes() -> None:
    block = 'type = "rest"\nuri = "https://catalog.example.net"\n'
    for given, sent in (("", None), ('warehouse = "fleet"\n', "fleet"), ('warehouse = "/srv"\n', "file:///srv")):
        catalog = lakehouse(block + given).lakehouse.catalog
        assert python_catalog(TABLES, catalog).get("warehouse") == sent
        assert spark_catalog(TABLES, catalog).get("spark.sql.catalog.lake.warehouse") == sent


@pytest.mark.parametrize(
    ("block", "jars"),
    [
        ("", (ICEBERG, SQLITE)),
        ('warehouse = "s3://lake/muster"\n', (ICEBERG, SQLITE, AWS)),
        ('type = "postgresql"\nuri = "postgresql://db/muster"\nwarehouse = "/srv"\n', (ICEBERG, POSTGRESQL)),
        # Where a REST catalog has the files is not known yet when Java must have its jars.
        ('type = "rest"\nuri = "https://c"\nwarehouse = "fleet"\n', (ICEBERG, AWS)),
        ('type = "rest"\nuri = "https://c"\nwarehouse = "hdfs://lake"\n', (ICEBERG,)),
    ],
)
def test_a_catalog_and_its_store_take_these_jars(block: str, jars: tuple[Jar, ...]) -> None:
    assert jars_for(lakehouse(block).lakehouse.catalog) == jars


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ('uri = "postgresql://db/muster"', 'uri and user are for type = "postgresql"'),
        ('type = "postgresql"', "not the uri of a postgresql catalog; write for example postgresql://db.example.net"),
        ('type = "postgresql"\nuri = "postgresql://u:hidden@db/muster"', "carries a secret, secrets are files"),
        ('type = "rest"\nuri = "catalog.example.net"', "not the uri of a rest catalog"),
        ('type = "rest"\nuri = "https://c"\nuser = "me"', "put its credential or token into secrets"),
        ('type = "oracle"', "lakehouse.catalog.type: invalid enum value 'oracle'"),
        ('warehouse = "tables"', "not a warehouse: 'tables', write a directory from / on"),
        ('properties = { "s3.endpoint" = "https://s" }', 's3.endpoint needs "client.region" beside it'),
    ],
)
def test_a_block_that_cannot_be_meant_is_one_line(block: str, line: str) -> None:
    with pytest.raises(SettingsError, match=line) as refusal:
        lakehouse(block)
    assert "\n" not in str(refusal.value)
    assert "hidden" not in str(refusal.value)
