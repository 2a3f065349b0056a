"""A pipeline file: what it means, and that every mistake is named with its line and the fix."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import streamjoin as sj
from streamjoin.config.pipeline import JoinSettings, Pipeline, PipelineSource, without_secrets
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.spark.pipeline.sources import bounded_options
from streamjoin.spark.pipeline.view import describe

WHOLE = """\
name = "trades near quotes"
checkpoint = "out/checkpoint"
trigger = "10 seconds"
partitions = 4

[source.left]
format = "kafka"
servers = "one:9092,two:9092"
topic = ["eu", "us"]
schema = "ts TIMESTAMP, sym STRING, px DOUBLE"
malformed = "out/malformed"
metadata = { partition = "part" }
[source.left.options]
maxOffsetsPerTrigger = 1000
kafka.sasl.jaas.config = "user=me password=${THE_PASSWORD}"

[source.right]
format = "csv"
path = "/data/quotes"
[source.right.schema]
ts = "TIMESTAMP"
sym = "STRING"
bid = "DOUBLE"

[join]
on = [{ equi = "sym" }, { band = ["px", "bid"], below = 0.5, above = 1 }, { theta = "l.px > 0" }]
window = ["5 seconds", { time = "1 minute" }]
time = "ts"
lateness = "2 seconds"

[sink]
format = "kafka"
servers = "one:9092"
topic = "matches"
key = "sym"

[spark]
master = "local[2]"
memory = "2g"
conf."spark.sql.shuffle.partitions" = 3
"""


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASSWORD", "hunter2")


def read(directory: Path, text: str) -> Pipeline:
    file = directory / "join.toml"
    file.write_text(text)
    return read_pipeline(file)


def test_a_whole_file(tmp_path: Path) -> None:
    pipeline = read(tmp_path, WHOLE)
    assert pipeline.spec == sj.JoinSpec(
        on=sj.Equi("sym") & sj.Band("px", "bid", below=0.5, above=1) & sj.Theta("l.px > 0"),
        window=(sj.TimeWindow("5 seconds"), sj.TimeWindow("1 minute")),
        time="ts",
        order="event_time",
        lateness="2 seconds",
    )
    assert pipeline.left.options == {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "subscribe": "eu,us",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
        "kafka.sasl.jaas.config": "user=me password=hunter2",
    }
    assert pipeline.left.malformed == str(tmp_path / "out/malformed")
    assert pipeline.right is not None
    assert pipeline.right.schema == "`ts` TIMESTAMP, `sym` STRING, `bid` DOUBLE"
    assert pipeline.right.path == "/data/quotes"
    assert pipeline.checkpoint == str(tmp_path / "out/checkpoint")
    assert (pipeline.trigger.every, pipeline.join) == ("10000 milliseconds", JoinSettings(partitions=4))
    assert (pipeline.master, pipeline.memory) == ("local[2]", "2g")
    assert pipeline.conf == {"spark.sql.shuffle.partitions": "3"}
    assert pipeline.needs_kafka


def test_a_batch_is_bounded_unless_the_file_says_how_much_it_takes(tmp_path: Path) -> None:
    kafka = PipelineSource("kafka", options={"subscribe": "a"})
    assert bounded_options(kafka) == {"subscribe": "a", "maxOffsetsPerTrigger": "1000000"}
    assert bounded_options(PipelineSource("json", path="in")) == {"maxBytesPerTrigger": str(256 << 20)}
    for option in ("maxfilespertrigger", "minOffsetsPerTrigger", "latestFirst"):
        assert bounded_options(PipelineSource("json", path="in", options={option: "3"})) == {option: "3"}
    assert bounded_options(PipelineSource("rate")) == {}
    told = describe(read(tmp_path, WHOLE))
    assert "maxOffsetsPerTrigger=1000," in told and "maxBytesPerTrigger=268435456)" in told


def test_what_the_gate_takes(tmp_path: Path) -> None:
    text = WHOLE.replace("partitions = 4", 'partitions = "auto"').replace(
        "[join]", '[join]\nordered = true\nidle = "3 s"\nmost_waiting = 9'
    )
    text = text.replace("[source.left]", '[source.left]\nby = "part"\nposition = "place"')
    pipeline = read(
        tmp_path, text.replace('window = ["5 seconds", { time = "1 minute" }]', "window = { count = 1000 }")
    )
    assert pipeline.join == JoinSettings(partitions="auto", ordered=True, idle="3 s", most_waiting=9)
    assert (pipeline.left.by, pipeline.left.position) == ("part", "place")
    assert pipeline.spec.windows == (sj.CountWindow(1000), sj.CountWindow(1000))


def test_texts_are_read_as_in_a_spec(tmp_path: Path) -> None:
    text = WHOLE.replace('{ equi = "sym" }, {', '"sym", "l.px > 1", {').replace('["5 seconds", {', '["100 rows", {')
    spec = read(tmp_path, text).spec
    assert spec.predicate.terms()[:2] == (sj.Equi("sym"), sj.Theta("l.px > 1"))
    assert spec.windows == (sj.CountWindow(100), sj.TimeWindow("1 minute"))
    on = next(line for line in WHOLE.splitlines() if line.startswith("on = "))
    assert read(tmp_path, WHOLE.replace(on, 'on = "sym"')).spec.on == sj.Equi("sym")


def test_how_the_columns_of_the_result_are_named(tmp_path: Path) -> None:
    keys = 'suffixes = ["", "_quote"]\nboth_keys = true\nresult_time = "at"\nhow = "inner"\norder = "event_time"'
    spec = read(tmp_path, WHOLE.replace("[join]", f"[join]\n{keys}")).spec
    assert (spec.suffixes, spec.both_keys, spec.result_time) == (("", "_quote"), True, "at")


def test_summaries(tmp_path: Path) -> None:
    keys = 'summary = { n = "count(*)", mid = "avg(r.px)" }\nbetween = ["-5 s", "1 s"]\nhow = "left"'
    spec = read(tmp_path, WHOLE.replace(WINDOW, keys)).spec
    assert spec.match == sj.Summary({"n": "count(*)", "mid": "avg(r.px)"}, ("-5 s", "1 s")) and spec.how == "left"
    keys = 'summary = { n = "count(*)" }\nbetween = ["-5 s", "0 s"]\nprevailing = true'
    spec = read(tmp_path, WHOLE.replace(WINDOW, keys).replace(CONDITION, 'on = "sym"')).spec
    assert spec.match == sj.Summary({"n": "count(*)"}, ("-5 s", "0 s"), prevailing=True)


def test_the_kind_of_join(tmp_path: Path) -> None:
    pipeline = read(tmp_path, WHOLE.replace("[join]", '[join]\nhow = "full"'))
    assert pipeline.spec.how == "full" and "full join: " in describe(pipeline)
    asof = '[join.match]\ndirection = "nearest"\ntolerance = "2 seconds"\nexact = false\n\n[sink]'
    text = WHOLE.replace('window = ["5 seconds", { time = "1 minute" }]\n', "").replace("[sink]", asof, 1)
    spec = read(tmp_path, text.replace("[join]", '[join]\nhow = "left"')).spec
    assert (spec.match, spec.how) == (sj.AsOf("nearest", "2 seconds", exact=False), "left")
    on = next(line for line in text.splitlines() if line.startswith("on = "))
    pipeline = read(tmp_path, text.replace(f"{on}\n", ""))
    assert pipeline.spec.how == "inner" and pipeline.spec.predicate.terms() == ()
    assert "as of nearest, tolerance 2 s, without equal times" in describe(pipeline)


def test_how_the_join_is_run(tmp_path: Path) -> None:
    keys = 'late = "out/late"\nordered = true\npositions = true\npunctuate = true\ncolumns = ["px"]'
    text = WHOLE.replace("[join]", f"[join]\n{keys}")
    text = text.replace("partitions = 4", 'partitions = 4\nmost_partitions = 8\nprogress = "out/progress.jsonl"')
    pipeline = read(tmp_path, text)
    late = str(tmp_path / "out/late")
    assert pipeline.join == JoinSettings(4, 8, True, True, True, columns=("px",), late=late)
    assert pipeline.progress == str(tmp_path / "out/progress.jsonl")
    told = describe(pipeline)
    assert "run with: partitions = 4, most_partitions = 8, ordered = True" in told
    assert f"late = {late}" in told
    assert f"progress: {pipeline.progress}" in told


def test_an_input_that_ends(tmp_path: Path) -> None:
    text = WHOLE.replace('"10 seconds"', '"available now"').replace("[join]", "[join]\nend_of_input = true")
    assert read(tmp_path, text).join == JoinSettings(4, end_of_input=True)
    memory = text.partition("[sink]")[0] + '[sink]\nformat = "memory"\nname = "matches"\n'
    with pytest.raises(sj.PipelineFileError, match=r"line 26: .*a sink that continues from a checkpoint, not memory"):
        read(tmp_path, memory)


SECOND = """
[[source.right]]
name = "asia"
format = "json"
path = "asia"
by = "exchange"
values = ["TSE", "HKE"]
where = "bid > 0"
schema = "ts TIMESTAMP, sym STRING, bid DOUBLE, exchange STRING"
"""


def test_several_sources_of_a_side(tmp_path: Path) -> None:
    text = WHOLE.replace("[source.right]", "[[source.right]]").replace("\n[join]", f"{SECOND}\n[join]")
    pipeline = read(tmp_path, text)
    assert list(pipeline.sides) == ["left", "right", "right-2"]
    assert list(pipeline.side("right")) == ["right", "right-2"]
    second = pipeline.sides["right-2"]
    assert (second.name, second.by, second.values) == ("asia", "exchange", ("TSE", "HKE"))
    lines = text.splitlines()
    for key in ("where", "schema"):
        assert lines[pipeline.lines[f"right-2.{key}"] - 1].startswith(key)
    assert lines[pipeline.lines["right-2"] - 1] == "[[source.right]]"
    with pytest.raises(sj.PipelineFileError, match="line 27: format = 'jsno' is not known"):
        read(tmp_path, text.replace('"json"', '"jsno"'))
    with pytest.raises(sj.PipelineFileError, match=r"source.right\] takes no 'zzz'; it takes"):
        read(tmp_path, text.replace("values", "zzz"))


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    pipeline = read(tmp_path, WHOLE)
    assert "hunter2" not in describe(pipeline)
    assert "kafka.sasl.jaas.config=***" in describe(pipeline)
    for said in ("no login: user=me password=hunter2", "no login with 'hunter2'", "at http://me:other@host/x"):
        told = without_secrets(said, pipeline.left.options)
        assert "***" in told and "hunter2" not in told and "other" not in told


# What is changed in the whole file, the line of the mistake, and words of the message.
CONDITION = 'on = [{ equi = "sym" }, { band = ["px", "bid"], below = 0.5, above = 1 }, { theta = "l.px > 0" }]'
WINDOW = 'window = ["5 seconds", { time = "1 minute" }]'
MISTAKES = [
    ("checkpoint =", "chekpoint =", 2, "the file takes no 'chekpoint'; did you mean 'checkpoint'"),
    ("checkpoint =", "Checkpoint =", 2, "takes no 'Checkpoint'; did you mean 'checkpoint'"),
    ('"out/checkpoint"', '"out"', 11, "malformed = '.*/out/malformed' lies in the checkpoint '.*/out': name a dir"),
    ('time = "ts"', 'time = "ts"\nlate = "out/x/../checkpoint/late"', 29, "lies in the checkpoint"),
    ('format = "kafka"\nserv', 'formt = "kafka"\nserv', 7, r"\[source.left\] takes no 'formt'; did you mean 'format'"),
    ('path = "/data/quotes"', 'pth = "/data/quotes"', 19, r"\[source.right\] takes no 'pth'; did you mean 'path'"),
    ("window = [", "windows = [", 27, r"\[join\] takes no 'windows'; did you mean 'window'"),
    ("[join]", "[jion]", 25, "the file takes no 'jion'; did you mean 'join'"),
    ('topic = "matches"', 'topc = "matches"', 34, r"\[sink\] takes no 'topc'; did you mean 'topic'"),
    ("partitions = 4", "partitions = 'four'", 4, "a whole number such as 4"),
    ("partitions = 4", "partitions = true", 4, "a whole number or text, not true or false"),
    ("partitions = 4", "partitions = 0", 4, "from 1 to 100,000"),
    ("partitions = 4", "most_partitions = 0", 4, "most_partitions = 0: it is a whole number from 1"),
    ("partitions = 4", 'progress = "s3://bucket/figures"', 4, "a local file"),
    ("metadata = {", 'values = ["0"]\nmetadata = {', 12, "values are those of a column"),
    ('time = "ts"', 'time = "ts"\npunctuate = true', 29, "needs ordered = true"),
    ('time = "ts"', 'time = "ts"\nend_of_input = true', 29, 'add trigger = "available now"'),
    ('time = "ts"', 'time = "ts"\nmost_waiting = 0', 29, "most_waiting = 0: it is a whole number from 1"),
    ('time = "ts"', 'time = "ts"\nlate = 3', 29, "late is text, not a whole number"),
    ('"10 seconds"', '"10 parsecs"', 3, "is not a duration"),
    ('"10 seconds"', '""', 3, "trigger is empty"),
    ('"10 seconds"', '"once"', 3, '"once" is "available now" here. Write trigger = "available now", or "10 seconds"'),
    ('"10 seconds"', '"continuous"', 3, 'Write trigger = "available now", or "10 seconds"'),
    ('"10 seconds"', "10 seconds", 3, 'text needs quotes: trigger = "10 seconds"'),
    ('format = "csv"', "format = csv # plain", 18, 'text needs quotes: format = "csv"'),
    ('path = "/data/quotes"', "path = /data/quotes", 19, 'text needs quotes: path = "/data/quotes"'),
    ('topic = ["eu", "us"]', "topic = [eu, us]", 9, 'text needs quotes: "eu"'),
    ('{ equi = "sym" }', "{ equi = sym }", 26, 'text needs quotes: "sym"'),
    ('time = "ts"', "time = \u201cts\u201d", 28, 'text needs quotes: time = "ts"'),
    ("partitions = 4", "partitions = 4.5.6", 4, "invalid TOML"),
    ('format = "csv"', 'format = "cvs"', 18, "did you mean 'csv'"),
    ('servers = "one:9092,two:9092"\n', "", 6, r"\[source.left\] has no 'servers'.*servers = "),
    ('path = "/data/quotes"\n', "", 17, r"\[source.right\] has no 'path'"),
    ('topic = ["eu", "us"]', "topic = [3]", 9, "topic holds 3"),
    ('topic = ["eu", "us"]', 'topic = "a"\npattern = "b"', 9, "either topic = .* or pattern"),
    ("metadata = { partition", "metadata = { partitoin", 12, "no 'partitoin'; it has: key"),
    ("maxOffsetsPerTrigger = 1000", 'subscribe = "x"', 14, "has a key of its own"),
    ("maxOffsetsPerTrigger = 1000", "maxOffsetsPerTrigger = [1]", 14, "is a list"),
    ('time = "ts"', 'time = "ts"\nidle = "soon"', 29, "is not a duration"),
    ("${THE_PASSWORD}", "${NOT_SET_ANYWHERE}", 15, "no variable 'NOT_SET_ANYWHERE'"),
    ("[source.right]", "[source.rihgt]", 17, "takes no 'rihgt'; did you mean 'right'"),
    ('equi = "sym"', 'euqi = "sym"', 26, "takes no 'euqi'; did you mean 'equi'"),
    ('{ equi = "sym" }', '{ equi = "sym", distance = 3 }', 26, "belong to a band"),
    ("below = 0.5", "below = -0.5", 26, "is negative"),
    ("l.px > 0", "l.px >", 26, "l.px >"),
    ("l.px > 0", "x.px > 0", 26, "x"),
    ('"5 seconds",', '"five seconds",', 27, "is not a duration"),
    ('{ time = "1 minute" }', '{ time = "1 minute", count = 3 }', 27, "either .* count = 1000"),
    ('"5 seconds", { time = "1 minute" }', '"5 seconds"', 27, "a left and a right one, not 1"),
    ('time = "ts"\n', "", 25, "a time window needs a time column"),
    ('lateness = "2 seconds"', "lateness = 1.5", 29, "text or a whole number, not a number"),
    ('lateness = "2 seconds"', 'match = { direction = "behind" }', 29, "direction"),
    ('lateness = "2 seconds"', "match = { tolerance = 2.5 }", 29, "tolerance"),
    ('lateness = "2 seconds"', 'match = { tolerance = "2 seconds" }', 27, "an as-of join has no window"),
    ('window = ["5 seconds", { time = "1 minute" }]', "match = { nearest = true }", 27, "nearest"),
    (WINDOW, 'summary = { n = "sum(r.px" }\nbetween = ["-5 s", "1 s"]', 27, "the summary 'n'"),
    (WINDOW, 'summary = { n = "count(*)" }', 25, r"\[join\] has no 'between'"),
    (WINDOW, 'summary = { n = "count(*)" }\nbetween = ["1 s"]', 27, "the first and the last time"),
    (WINDOW, 'summary = { n = "count(*)" }\nbetween = ["1 s", "2 s"]\nmatch = {}', 29, "either summary or match"),
    ('lateness = "2 seconds"', 'between = ["1 s", "2 s"]', 29, "between belongs to summaries"),
    ('time = "ts"', 'time = "ts"\nsummary = { n = "count(*)" }\nbetween = ["1 s", "2 s"]', 27, "leave out window"),
    ('lateness = "2 seconds"', 'how = "outer"', 29, "it is one of 'inner'"),
    ('lateness = "2 seconds"', 'order = "arrival"', 29, "it is one of event_time"),
    ('lateness = "2 seconds"', 'suffixes = ["_l"]', 29, "two different texts"),
    ('lateness = "2 seconds"', 'both_keys = "yes"', 29, "true or false, not text"),
    ('lateness = "2 seconds"', 'result_time = ""', 29, "result_time is empty"),
    ('lateness = "2 seconds"', 'self_join = "yes"', 29, "true or false, not text"),
    ('lateness = "2 seconds"', "self_join = true", 17, "a self-join has one stream"),
    ('key = "sym"', 'path = "x"', 35, r"\[sink\] takes no 'path'"),
    ("[sink]", "[sync]", 31, "the file takes no 'sync'; it takes: .*sink"),
    ('master = "local[2]"', 'mastre = "local[2]"', 38, "did you mean 'master'"),
    ("partitions = 4", "partitions 4", 4, "invalid TOML"),
    ('key = "sym"', 'key = "sym', 35, "invalid TOML"),
    (CONDITION, "on = [3]", 26, "a condition is .*, not 3"),
    (CONDITION, 'on = [{ equi = "sym", theta = "l.px > 0" }]', 26, "this has equi and theta"),
    ('format = "csv"', 'format = "parquet"\nmalformed = "out"', 19, "no record can be malformed"),
    ("maxOffsetsPerTrigger = 1000", 'subscribe = "eu"', 14, "has a key of its own here"),
    (CONDITION + "\n", "", 25, r"\[join\] has no 'on'"),
    (CONDITION, "on = []", 25, r"\[join\] has no 'on'"),
    (WINDOW + "\n", "", 25, r"\[join\] has no 'window'"),
    (WINDOW, "window = true", 27, "window is text or a whole number or a table or a list, not true"),
    (WHOLE[WHOLE.index("[source.right]") : WHOLE.index("[join]")], "", 1, r"has no 'right'.* or self_join = true"),
    (WHOLE[WHOLE.index("[source.left]") : WHOLE.index("[source.right]")], "", 1, "has no 'left'"),
    (WHOLE[WHOLE.index("[sink]") : WHOLE.index("[spark]")], "", 1, "the file has no 'sink'"),
    ('schema = "ts TIMESTAMP, sym STRING, px DOUBLE"\n', "", 6, r"\[source.left\] has no 'schema'"),
    ('"10 seconds"', '"10 us"', 3, "under a millisecond"),
    ('time = "ts"', 'time = ["a", "b", "c"]', 28, "names 3 columns; it is one name, or a left and a right one"),
    (
        'format = "kafka"\nservers = "one:9092"\ntopic = "matches"\nkey = "sym"',
        'format = "memory"',
        31,
        "has no 'name'",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), MISTAKES, ids=[f"{m[0]} -> {m[1]}" for m in MISTAKES])
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert WHOLE.count(old) >= 1
    with pytest.raises(sj.PipelineFileError, match=words) as caught:
        read(tmp_path, WHOLE.replace(old, new, 1))
    told = re.match(r".*join\.toml, line (\d+)", str(caught.value))
    # A part that is missing altogether has no line of its own: then it is the file's first.
    assert told, str(caught.value)
    assert int(told[1]) == (1 if "the file has no" in str(caught.value) else line), str(caught.value)


def test_all_mistakes_are_told_at_once_in_order(tmp_path: Path) -> None:
    """Whichever they are and wherever they stand; what only follows from another one is not told."""
    found = re.compile(r"join\.toml, line (\d+)")
    # Each is in a table of its own.
    mistakes = [
        ('"10 seconds"', '"10 us"', 3),
        ('schema = "ts TIMESTAMP, sym STRING, px DOUBLE"\n', "", 6),
        ("[source.right]", "[source.rihgt]", 17),
        ('topic = "matches"', "topic = 5", 34),
        ('memory = "2g"', "memory = [2]", 39),
    ]
    for number in range(1, len(mistakes) + 1):
        for chosen in itertools.combinations(mistakes, number):
            text = WHOLE
            for old, new, _ in chosen:
                assert old in text
                text = text.replace(old, new or "# nothing\n", 1)
            with pytest.raises(sj.PipelineFileError) as caught:
                read(tmp_path, text)
            assert [int(line) for line in found.findall(str(caught.value))] == [line for *_, line in chosen]
            assert str(caught.value).startswith(f"{number} mistakes:\n") == (number > 1)


def test_several_mistakes_in_one_table(tmp_path: Path) -> None:
    text = (
        WHOLE.replace('{ equi = "sym" }', "5").replace('time = "ts"', "time = 5").replace('"2 seconds"', '"2 parsecs"')
    )
    with pytest.raises(sj.PipelineFileError, match=r"^3 mistakes:\n.*line 26: .*\n.*line 28: time is.*\n.*line 29: "):
        read(tmp_path, text.replace("[join]", "[join]\n\n").replace("[join]\n\n\n", "[join]\n"))


def test_two_mistakes_of_a_self_join(tmp_path: Path) -> None:
    words = r"line 17: a self-join has one stream.*\n.*line 29: how='left' is not for a self-join"
    with pytest.raises(sj.PipelineFileError, match=words):
        read(tmp_path, WHOLE.replace('lateness = "2 seconds"', 'how = "left"\nself_join = true'))


def test_a_mistake_that_no_example_mends_hides_no_other_part(tmp_path: Path) -> None:
    """A join without a time is wrong as a whole; trigger, source and sink are told beside it."""
    text = (
        WHOLE.replace('time = "ts"', "# nothing")
        .replace('"10 seconds"', '"often"')
        .replace("[source.left]", "[source.lfet]")
    )
    with pytest.raises(sj.PipelineFileError) as caught:
        read(tmp_path, text.replace('topic = "matches"', "topic = 5"))
    told = str(caught.value)
    assert told.startswith("4 mistakes:\n"), told
    assert all(
        words in told for words in ("'often'", "'lfet'; did you mean 'left'?", "needs a time column", "topic is")
    ), told


@pytest.mark.parametrize("path", ["out/checkpoint", "out/checkpoint/matches/", "./out/other/../checkpoint/x", "file:"])
def test_a_sink_inside_the_checkpoint_is_refused(tmp_path: Path, path: str) -> None:
    start = WHOLE[: WHOLE.index("[sink]")]
    path = f"file://{tmp_path}/out/checkpoint/x" if path == "file:" else path
    with pytest.raises(sj.PipelineFileError, match=r"line 33: path = .* lies in the checkpoint '.*/out/checkpoint'"):
        read(tmp_path, f'{start}[sink]\nformat = "parquet"\npath = "{path}"\n')
    assert read(tmp_path, f'{start}[sink]\nformat = "parquet"\npath = "out/checkpoints"\n').sink.path


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(sj.PipelineFileError, match=r"can't read .*nowhere\.toml"):
        read_pipeline(tmp_path / "nowhere.toml")


def test_a_sink_for_looking_needs_no_checkpoint(tmp_path: Path) -> None:
    text = WHOLE[: WHOLE.index("[sink]")] + '[sink]\nformat = "console"\n'
    assert read(tmp_path, text.replace('checkpoint = "out/checkpoint"\n', "")).checkpoint is None
    assert read(tmp_path, text.replace("10 seconds", "available now", 1)).trigger.available_now


DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(
    r"```toml\n(.*?)```", (DOCS / "kafka.md").read_text() + (DOCS / "deploying.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_what_the_documents_show_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    """Each block takes the place of its table in a whole file."""
    for name in ("KAFKA_PASSWORD", "REGISTRY_PASSWORD"):
        monkeypatch.setenv(name, "hunter2")
    table = block.splitlines()[0]
    parts = re.split(r"^(?=\[)", WHOLE, flags=re.MULTILINE)
    replaced = [part for part in parts if not part.startswith(table[:-1])]
    read(tmp_path, "".join([*replaced, block]))


def test_every_key_is_in_the_documents(tmp_path: Path) -> None:
    told = (DOCS / "pipeline.md").read_text()
    with pytest.raises(sj.PipelineFileError, match="it takes: ") as caught:
        read(tmp_path, "zzzzzz = 1\n" + WHOLE)
    for key in str(caught.value).rpartition("it takes: ")[2].split(", "):
        assert f"`{key}`" in told or f"[{key}" in told, key
    for broken in ("[source.left]", "[source.right]", "[join]", "[sink]", "[spark]"):
        with pytest.raises(sj.PipelineFileError, match="it takes: ") as caught:
            read(tmp_path, WHOLE.replace(broken, f"{broken}\nzzzzzz = 1"))
        for key in str(caught.value).rpartition("it takes: ")[2].split(", "):
            assert f"`{key}`" in told, key
