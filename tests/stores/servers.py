"""Stores for the tests: each is a server that the tests start, with its settings and the locations on it.

A server that can't be had or started is an error. Programs are fetched once and stay in the user's cache;
`python -m tests.stores.servers` fetches the jars that the suite needs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.java import find_java
from streamjoin.storage import places, settings
from tests.storage.object_store import ObjectStore

PATIENCE = 60.0
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
# The documented account of the emulator.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_AWS = "2.35.4"
S3_MODULES = (
    *(
        jars.Module("software.amazon.awssdk", name, _AWS)
        for name in ("s3", "sts", "s3-transfer-manager", "apache-client", "netty-nio-client")
    ),
    jars.Module("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
)
"""The parts of Amazon's client that Hadoop's S3A needs: a tenth of the bundle that it names."""
HADOOP = "3.5.0"


class Store:
    """A running store."""

    def __init__(self, storage: Mapping[str, Any], prefix: str, spark: tuple[jars.Module, ...] = ()) -> None:
        self.storage = dict(storage)
        """What `session(storage=...)` is given."""
        self.prefix = prefix
        self.spark = spark
        """The modules with which Spark reaches it, besides its own."""

    def location(self, name: str) -> str:
        """The location of a new directory."""
        return f"{self.prefix}/{name}"

    def use(self) -> None:
        """Have this process reach it."""
        settings.use(self.storage)

    def keys_with(self, location: str, text: bytes) -> list[str]:
        """The files below a location that contain a text; there must be files."""
        root = places.place(location)
        selector = fs.FileSelector(root.path, recursive=True)  # type: ignore[union-attr]
        infos = root.filesystem.get_file_info(selector)  # type: ignore[union-attr]
        files = [info.path for info in infos if info.type == fs.FileType.File]
        assert files, location
        return [
            path
            for path in files
            if text in path.encode() or text in root.filesystem.open_input_stream(path).read()  # type: ignore[union-attr]
        ]

    def stop(self) -> None:
        """Stop the server."""


class Moto(Store):
    """moto in this process, which counts requests."""

    def __init__(self) -> None:
        self.server = ObjectStore()
        self.server.empty_bucket("bucket")
        super().__init__(_s3(self.server.url, "moto"), "s3a://bucket", S3_MODULES)

    def stop(self) -> None:
        self.server.stop()


class _Served(Store):
    """A server in a process of its own."""

    _process: subprocess.Popen[bytes]

    def _start(self, command: list[str], directory: Path, ready: Callable[[], bool], **variables: str) -> None:
        self._directory = directory
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **variables}
            )
        ending = time.monotonic() + PATIENCE
        while not ready():
            assert self._process.poll() is None, (directory / "log").read_text()[-2000:]
            assert time.monotonic() < ending, (directory / "log").read_text()[-2000:]
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


class Minio(_Served):
    """MinIO, built with Go."""

    def __init__(self) -> None:
        program = _go("github.com/minio/minio@latest", "minio")
        directory, port = Path(tempfile.mkdtemp(prefix="minio-")), free_port()
        super().__init__(_s3(f"http://127.0.0.1:{port}", "minioadmin"), "s3a://bucket", S3_MODULES)
        (directory / "data" / "bucket").mkdir(parents=True)
        self._start(
            [program, "server", str(directory / "data"), "--address", f"127.0.0.1:{port}"],
            directory,
            lambda: _answers(f"http://127.0.0.1:{port}/minio/health/live"),
            MINIO_ROOT_USER="minioadmin",
            MINIO_ROOT_PASSWORD=SECRET,
        )


class Azurite(_Served):
    """Azurite, from npm; with the account's key, or with a token that is signed with it."""

    def __init__(self, *, token: bool = False) -> None:
        program = _azurite()
        directory, port = Path(tempfile.mkdtemp(prefix="azurite-")), free_port()
        endpoint = f"http://127.0.0.1:{port}"
        azure = {"account": "devstoreaccount1", "endpoint": endpoint}
        super().__init__({"azure": azure}, "abfs://bucket@devstoreaccount1.dfs.core.windows.net")
        self._start(
            ["node", program, "--silent", "--skipApiVersionCheck", "--blobPort", str(port), "--inMemoryPersistence"],
            directory,
            lambda: _answers(endpoint),
        )
        import datetime as dt

        from azure.storage.blob import AccountSasPermissions as Permissions
        from azure.storage.blob import BlobServiceClient, ResourceTypes, generate_account_sas

        credential = {"account_name": "devstoreaccount1", "account_key": AZURITE_KEY}
        BlobServiceClient(f"{endpoint}/devstoreaccount1", credential=credential).create_container("bucket")
        if token:
            azure["sas_token"] = generate_account_sas(
                "devstoreaccount1",
                AZURITE_KEY,
                ResourceTypes(service=True, container=True, object=True),
                Permissions(read=True, write=True, delete=True, list=True, add=True, create=True),
                dt.datetime.now(dt.UTC) + dt.timedelta(days=1),
            )
        else:
            azure["account_key"] = AZURITE_KEY
        self.storage = {"azure": azure}


class FakeGcs(_Served):
    """fake-gcs-server, built with Go."""

    def __init__(self) -> None:
        program = _go("github.com/fsouza/fake-gcs-server@latest", "fake-gcs-server")
        directory, port = Path(tempfile.mkdtemp(prefix="gcs-")), free_port()
        endpoint = f"http://127.0.0.1:{port}"
        storage = {"gcs": {"endpoint": endpoint, "anonymous": True, "project": "tests"}}
        super().__init__(storage, "gs://bucket")
        (directory / "data" / "bucket").mkdir(parents=True)
        self._start(
            [
                program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
                "-public-host", f"127.0.0.1:{port}", "-external-url", endpoint, "-data", str(directory / "data"),
            ],
            directory,
            lambda: _answers(f"{endpoint}/storage/v1/b"),
        )  # fmt: skip


class Hdfs(_Served):
    """A small HDFS from Hadoop's test jars, and libhdfs, which is built from the sources in the crate `hdfs-sys`."""

    def __init__(self) -> None:
        place = _hadoop()
        directory, port = Path(tempfile.mkdtemp(prefix="hdfs-")), free_port()
        # The first access starts a Java in the process that asks.
        super().__init__({"timeout": 60.0}, f"hdfs://127.0.0.1:{port}")
        java = find_java().home
        classpath = ":".join(str(path) for path in sorted((place / "jars").glob("*.jar")))
        # libhdfs reads these in this process and in those that it starts.
        self.environment = {
            "ARROW_LIBHDFS_DIR": str(place),
            "HADOOP_HOME": str(place),
            "JAVA_HOME": str(java),
            "CLASSPATH": classpath,
            "LIBHDFS_OPTS": "-Xmx128m",
            "LD_LIBRARY_PATH": str(java / "lib" / "server"),
        }
        os.environ.update(self.environment)
        program = str(Path(__file__).with_name("MiniHdfs.java"))
        self._start(
            [str(java / "bin" / "java"), "-Xmx512m", "-cp", classpath, program, str(port), str(directory / "data")],
            directory,
            lambda: "ready" in (directory / "log").read_text(),
        )

    def stop(self) -> None:
        for name in self.environment:
            os.environ.pop(name, None)
        super().stop()


def _hadoop() -> Path:
    """The directory with Hadoop's jars and libhdfs, fetched and built when it is not there."""
    place = cache_dir() / f"store-hdfs-{HADOOP}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            module = jars.Module("org.apache.hadoop", "hadoop-minicluster", HADOOP)
            types = ("jar", "bundle", "test-jar")
            target, ivy = draft / "hadoop" / "jars", place.parent / "ivy"
            jars.retrieve([module], target, ivy_home=ivy, transitive=True, types=types)
            _build_libhdfs(draft)
            if not place.is_dir():
                (draft / "hadoop").rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def _build_libhdfs(draft: Path) -> None:
    for program in ("cargo", "gcc"):
        assert shutil.which(program), f"libhdfs is built with {program}, which is not installed"
    (draft / "src").mkdir()
    (draft / "src" / "lib.rs").touch()
    manifest = '[package]\nname = "fetch"\nversion = "0.1.0"\n[dependencies]\nhdfs-sys = "0.3.0"\n'
    (draft / "Cargo.toml").write_text(manifest)
    subprocess.run(["cargo", "vendor", "--quiet"], cwd=draft, check=True, stdout=subprocess.DEVNULL)
    sources = draft / "vendor" / "hdfs-sys" / "libhdfs" / "hdfs_3_3"
    java = find_java().home
    headers = [sources, sources / "include", sources.parent, sources / "os", sources / "os" / "posix"]
    headers += [java / "include", java / "include" / "linux"]
    files = [str(path) for path in sources.rglob("*.c") if "windows" not in path.parts]
    command = ["gcc", "-w", "-shared", "-fPIC", "-fcommon", *(f"-I{path}" for path in headers), *files]
    command += [f"-L{java / 'lib' / 'server'}", "-ljvm", "-lpthread", "-o", str(draft / "hadoop" / "libhdfs.so")]
    subprocess.run(command, check=True)


def _s3(url: str, user: str) -> dict[str, Any]:
    return {"s3": {"endpoint": url, "region": "us-east-1", "access_key": user, "secret_key": SECRET}}


def spark_jars(modules: tuple[jars.Module, ...] = S3_MODULES) -> list[Path]:
    """The jars with which Spark reaches a store, fetched when they are not there."""
    if not modules:
        return []
    place = cache_dir() / f"store-s3-{HADOOP}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            jars.retrieve(modules, draft / "jars", ivy_home=place.parent / "ivy", transitive=True)
            connector = jars.Module("org.apache.hadoop", "hadoop-aws", HADOOP)
            jars.retrieve([connector], draft / "jars", ivy_home=place.parent / "ivy", transitive=False)
            if not place.is_dir():
                (draft / "jars").rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    # Spark has its own.
    return sorted(path for path in place.glob("*.jar") if not path.name.startswith(("slf4j", "scala", "log4j")))


def _go(package: str, program: str) -> str:
    target = cache_dir() / "stores" / program
    if not target.exists():
        found = shutil.which(program)
        if found:
            return found
        assert shutil.which("go"), f"{program} is built with Go, which is not installed"
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "install", package], env={**os.environ, "GOBIN": str(target.parent)}, check=True)
    return str(target)


def _azurite() -> str:
    home = cache_dir() / "stores" / "azurite"
    program = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        assert shutil.which("npm"), "Azurite is fetched with npm, which is not installed"
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", str(home), "azurite"], check=True)
    return str(program)


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    spark_jars()
