"""Say how ``[lakehouse.catalog]`` is written: what names the tables, and where their files are.

By default both are below ``lakehouse.path``, the catalog as one SQLite file. Another catalog and another warehouse are
for tables that several machines write or read.
"""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from shared.settings import FilePath, Settings

_EXAMPLES = {"postgresql": "postgresql://db.example.net/muster", "rest": "https://catalog.example.net"}
_SCHEMES = {"postgresql": ("postgresql",), "rest": ("http", "https")}
ON_S3 = ("s3://", "s3a://")
"""How the URL of a warehouse begins whose files are on an object store of that kind."""


class CatalogSettings(Settings, frozen=True):
    """One Iceberg catalog, for Spark and for Python without Java alike."""

    type: Annotated[Literal["sqlite", "postgresql", "rest"], Meta(description="sqlite: one file below path")] = "sqlite"
    uri: Annotated[str, Meta(description="where the catalog is, such as postgresql://db.example.net/muster")] = ""
    user: Annotated[str, Meta(description="who we are to PostgreSQL")] = ""
    password_file: Annotated[FilePath, Meta(description="file with the password of user")] = FilePath()
    warehouse: Annotated[
        str, Meta(description="where the tables' files are: a directory, or a URL as s3://bucket/x; of rest, its name")
    ] = ""
    properties: Annotated[dict[str, str], Meta(description="further properties of the catalog, by Iceberg's names")] = (
        msgspec.field(default_factory=dict)
    )
    secrets: Annotated[
        dict[str, FilePath], Meta(description="further properties, each with the file that holds its value")
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type == "sqlite":
            if self.uri or self.user or self.password_file:
                raise ValueError('the sqlite catalog is a file below path: uri and user are for type = "postgresql"')
        else:
            _check_uri(self.type, self.uri)
        if (self.user or self.password_file) and self.type == "rest":
            raise ValueError("a rest catalog has no user: put its credential or token into secrets")
        if self.password_file and not self.user:
            raise ValueError("password_file belongs to user, which is missing")
        if self.type == "rest":
            # It may call a warehouse as it likes, and tells whoever asks where the files are.
            return
        if self.warehouse and not (self.warehouse.startswith("/") or urlsplit(self.warehouse).scheme):
            raise ValueError(
                f"not a warehouse: {self.warehouse!r}, write a directory from / on or a URL as s3://bucket/x"
            )
        if "s3.endpoint" in self.properties and "client.region" not in self.properties:
            # Without one Java gives up, and pyiceberg asks Amazon for the bucket's.
            raise ValueError(
                'properties: s3.endpoint needs "client.region" beside it: what your store calls its region, mostly'
                " us-east-1"
            )


FILE_BESIDE_THE_TABLES = CatalogSettings()
"""The default."""


def _check_uri(kind: str, uri: str) -> None:
    wrong = f"not the uri of a {kind} catalog; write for example {_EXAMPLES[kind]}"
    try:
        url = urlsplit(uri)
    except ValueError:
        raise ValueError(wrong) from None
    if url.scheme not in _SCHEMES[kind] or not url.hostname or (kind == "postgresql" and not url.path.strip("/")):
        raise ValueError(wrong)
    if url.password or url.username:
        # The value must not be repeated: it would end in a log.
        raise ValueError("the uri of a catalog carries a secret, secrets are files: use user and password_file")
