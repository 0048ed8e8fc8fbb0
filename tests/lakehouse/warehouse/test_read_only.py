"""Tables are served read only, or not at all unless the operator answers for their catalog."""

from pathlib import Path

from click.testing import CliRunner

from aggregator.lakehouse.commands.spark_sql import spark_sql


def test_a_rest_catalog_is_refused_unless_the_operator_trusts_it(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "tables"\n'
        '[lakehouse.catalog]\ntype = "rest"\nuri = "http://127.0.0.1:1"\nwarehouse = "s3://lake/muster"\n'
    )
    refused = CliRunner().invoke(spark_sql, ["--config", str(config)])
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "a REST catalog cannot be opened read only from here" in refused.stderr
    assert "--trust-catalog" in refused.stderr

    trusted = CliRunner().invoke(spark_sql, ["--config", str(config), "--trust-catalog"])
    assert (trusted.exit_code, trusted.stderr.count("\n")) == (1, 1)
    assert "http://127.0.0.1:1" in trusted.stderr
    assert "read only" not in trusted.stderr
