"""Endpoints and credentials of stores, in one place: for Arrow, for Hadoop and for the clients of object stores.

The settings of a process are those that `use` was given, or those in the environment variable
`STREAMJOIN_STORAGE_SECRETS`, which Spark passes to its Python workers. They are never written into a checkpoint. Where
nothing is set, each library looks for credentials in its usual places: environment variables, files of its command line
tool, the machine's role.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

from streamjoin.model.errors import SpecError

VARIABLE: Final = "STREAMJOIN_STORAGE_SECRETS"
"""The environment variable with the settings as JSON. Spark's UI hides variables whose names contain "secret"."""
_SCHEMES: Final = ("http://", "https://")
_Settings = TypeVar("_Settings")


def _secret() -> Any:
    return field(default=None, repr=False)


def _check_endpoint(store: str, endpoint: str | None) -> None:
    if endpoint is not None and (not endpoint.startswith(_SCHEMES) or endpoint.rstrip("/").count("/") != 2):
        raise SpecError(
            f"storage.{store}.endpoint is {endpoint!r}: it is a URL without a path, such as http://127.0.0.1:9000"
        )


@dataclass(frozen=True)
class S3Settings:
    """An S3 store: where it is, if it is not AWS, and the keys.

    Args:
        endpoint: the URL of the store, such as `http://minio:9000`; default: AWS.
        path_style: whether the bucket is in the path instead of the host name; default: yes if there is an endpoint.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = _secret()
    secret_key: str | None = _secret()
    session_token: str | None = _secret()
    path_style: bool | None = None

    def __post_init__(self) -> None:
        _check_endpoint("s3", self.endpoint)
        if (self.access_key is None) != (self.secret_key is None):
            raise SpecError("storage.s3 has one of access_key and secret_key: it takes both or neither")
        if self.session_token is not None and self.access_key is None:
            raise SpecError("storage.s3 has a session_token without the access_key and secret_key that it belongs to")


@dataclass(frozen=True)
class AzureSettings:
    """An Azure storage account and one kind of credentials: a key, a SAS token, or an application's secret.

    Args:
        account: the account that the credentials belong to; default: that of the location.
        endpoint: the URL of an emulator such as Azurite, whose paths begin with the account; default: Azure.
    """

    account: str | None = None
    endpoint: str | None = None
    account_key: str | None = _secret()
    sas_token: str | None = _secret()
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = _secret()

    def __post_init__(self) -> None:
        _check_endpoint("azure", self.endpoint)
        application = (self.tenant_id, self.client_id, self.client_secret)
        if any(application) and not all(application):
            raise SpecError("storage.azure needs all three of tenant_id, client_id and client_secret, or none of them")
        if sum(map(bool, (self.account_key, self.sas_token, self.client_secret))) > 1:
            raise SpecError("storage.azure takes one of account_key, sas_token and client_secret")
        if self.endpoint is not None and self.account is None:
            raise SpecError('storage.azure has an endpoint but no account: add account = "devstoreaccount1"')


@dataclass(frozen=True)
class GcsSettings:
    """Google Cloud Storage: a key file, or no credentials at all.

    Args:
        credentials: the path of a service account's JSON key, which must be there on all machines.
        anonymous: whether to send no credentials, for public buckets and emulators.
        endpoint: the URL of an emulator such as fake-gcs-server; default: Google's.
    """

    credentials: str | None = None
    anonymous: bool = False
    endpoint: str | None = None
    project: str | None = None

    def __post_init__(self) -> None:
        _check_endpoint("gcs", self.endpoint)
        if self.anonymous and self.credentials is not None:
            raise SpecError("storage.gcs is anonymous and has credentials: remove one of them")


@dataclass(frozen=True)
class StorageSettings:
    """How this process and Spark reach stores.

    Args:
        timeout: seconds after which a store that does not answer is reported as unreachable.
        conditional_writes: False for a store that can't refuse to replace a file. Then nothing prevents two queries
            from writing to one checkpoint, and you have to.
    """

    s3: S3Settings = S3Settings()
    azure: AzureSettings = AzureSettings()
    gcs: GcsSettings = GcsSettings()
    timeout: float = 10.0
    conditional_writes: bool = True

    def __post_init__(self) -> None:
        if not 0.5 <= self.timeout <= 600:
            raise SpecError(f"storage.timeout is {self.timeout:g} seconds: it is between 0.5 and 600 seconds")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not appear in any message."""
        stores = (self.s3, self.azure, self.gcs)
        values = (getattr(store, entry.name) for store in stores for entry in fields(store) if not entry.repr)
        return tuple(value for value in values if value)

    def to_json(self) -> str:
        """The settings for the environment of another process, secrets included."""
        return json.dumps(asdict(self))


STORES: Final = {"s3": S3Settings, "azure": AzureSettings, "gcs": GcsSettings}
"""The tables of a file below [storage]."""


def storage_settings(values: StorageSettings | Mapping[str, Any]) -> StorageSettings:
    """Settings from a mapping such as `{"s3": {"endpoint": "http://minio:9000"}}`.

    Raises:
        SpecError: a name or a value is wrong. No message contains a secret.
    """
    if isinstance(values, StorageSettings):
        return values
    if not isinstance(values, Mapping):
        raise SpecError(f"storage is a mapping or a StorageSettings, not {type(values).__name__}")
    known: dict[str, Any] = {
        name: _object(kind, value, f"storage.{name}")
        for name, kind in STORES.items()
        if (value := values.get(name)) is not None
    }
    rest = {name: value for name, value in values.items() if name not in STORES}
    return _object(StorageSettings, {**rest, **known}, "storage")


def _object(kind: type[_Settings], values: Any, title: str) -> _Settings:
    if isinstance(values, kind):
        return values
    if not isinstance(values, Mapping):
        raise SpecError(f"{title} is a mapping, not {type(values).__name__}")
    types = {entry.name: str(entry.type) for entry in fields(kind)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in types:
            raise SpecError(f"{title} takes no {name!r}; it takes: {', '.join(types)}")
        expected = types[name].partition(" | ")[0]
        allowed = {"str": str, "bool": bool, "float": (int, float)}.get(expected)
        if allowed is not None and value is not None:
            wrong = not isinstance(value, allowed) or (expected == "float" and isinstance(value, bool))  # type: ignore[arg-type]
            if wrong or value == "":
                text = {"str": "a text that is not empty", "bool": "true or false", "float": "a number"}[expected]
                raise SpecError(f"{title}.{name} is {text}")
    return kind(**values)


_in_use: StorageSettings | None = None


def use(settings: StorageSettings | Mapping[str, Any] | None) -> StorageSettings:
    """Have this process reach stores with these settings; None for those of the environment."""
    global _in_use
    _in_use = None if settings is None else storage_settings(settings)
    return current()


def current() -> StorageSettings:
    """The settings of this process."""
    return _in_use if _in_use is not None else _from_environment(os.environ.get(VARIABLE))


@functools.lru_cache(maxsize=4)
def _from_environment(text: str | None) -> StorageSettings:
    return storage_settings(json.loads(text)) if text else StorageSettings()


def hadoop_settings(settings: StorageSettings) -> dict[str, str]:
    """Hadoop's settings, without the prefix `spark.hadoop.`; the timeouts apply to stores without settings, too."""
    half = f"{max(1, round(settings.timeout * 300))}ms"
    options: dict[str, str | None] = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.attempts.maximum": "2",
        "fs.s3a.retry.limit": "2",
        "fs.s3a.retry.interval": "200ms",
        "fs.s3a.connection.establish.timeout": half,
        "fs.azure.io.retry.max.retries": "2",
        "fs.azure.io.retry.min.backoff.interval": "200ms",
        "fs.azure.http.connection.timeout": half,
        "fs.gs.http.max.retry": "2",
        "fs.gs.http.connect-timeout": half,
        "ipc.client.connect.max.retries": "2",
        "ipc.client.connect.max.retries.on.timeouts": "1",
        "ipc.client.connect.timeout": half.removesuffix("ms"),
        # The log's own files and Spark's are written with a condition; S3A sends one only where it is asked to.
        "fs.s3a.create.conditional.enabled": str(settings.conditional_writes).lower(),
    }
    options |= _s3a(settings.s3) | _abfs(settings.azure) | _gs(settings.gcs)
    return {key: value for key, value in options.items() if value is not None}


def _s3a(s3: S3Settings) -> dict[str, str | None]:
    provider = "TemporaryAWSCredentialsProvider" if s3.session_token else "SimpleAWSCredentialsProvider"
    styled = s3.endpoint is not None if s3.path_style is None else s3.path_style
    return {
        "fs.s3a.endpoint": s3.endpoint,
        "fs.s3a.endpoint.region": s3.region or ("us-east-1" if s3.endpoint else None),
        "fs.s3a.path.style.access": "true" if styled else None,
        "fs.s3a.connection.ssl.enabled": "false" if (s3.endpoint or "").startswith("http:") else None,
        "fs.s3a.access.key": s3.access_key,
        "fs.s3a.secret.key": s3.secret_key,
        "fs.s3a.session.token": s3.session_token,
        "fs.s3a.aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{provider}" if s3.access_key else None,
    }


def _abfs(azure: AzureSettings) -> dict[str, str | None]:
    host = f".{azure.account}.dfs.core.windows.net" if azure.account else ""
    options: dict[str, str | None] = {"fs.azure.account.key" + host: azure.account_key}
    if azure.sas_token:
        options["fs.azure.account.auth.type" + host] = "SAS"
        options["fs.azure.sas.fixed.token" + host] = azure.sas_token.removeprefix("?")
    if azure.client_secret:
        oauth = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
        token = f"https://login.microsoftonline.com/{azure.tenant_id}/oauth2/token"
        options |= {
            "fs.azure.account.auth.type" + host: "OAuth",
            "fs.azure.account.oauth.provider.type" + host: oauth,
            "fs.azure.account.oauth2.client.endpoint" + host: token,
            "fs.azure.account.oauth2.client.id" + host: azure.client_id,
            "fs.azure.account.oauth2.client.secret" + host: azure.client_secret,
        }
    return options


def _gs(gcs: GcsSettings) -> dict[str, str | None]:
    kind = "UNAUTHENTICATED" if gcs.anonymous else "SERVICE_ACCOUNT_JSON_KEYFILE" if gcs.credentials else None
    return {
        "fs.gs.storage.root.url": f"{gcs.endpoint.rstrip('/')}/" if gcs.endpoint else None,
        "fs.gs.project.id": gcs.project,
        "fs.gs.auth.type": kind,
        "fs.gs.auth.service.account.json.keyfile": gcs.credentials,
    }
