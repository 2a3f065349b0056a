"""Runs SQL over files in Flink through PyFlink: reads tasks, one per line, and prints how long each took.

All statements of a task run as one job; `refusals` only asks what the planner says to them. The sources are files of
CSV, read in order of time; a result is a folder of CSV files, or with `discard` thrown away.
"""

import json
import os
import sys
import time
from importlib.metadata import version

from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        if "refusals" in task:
            print("answer " + json.dumps({"refusals": refusals(task)}), flush=True)
            continue
        seconds = []
        for number, part in enumerate(("warm", "warm", "whole")):
            began = time.perf_counter()
            run(task, part, f"{task['out']}/{part if part == 'whole' else number}")
            seconds.append(time.perf_counter() - began)
        answer = {"start_up": seconds[1], "seconds": seconds[2], "version": version("apache-flink")}
        print("answer " + json.dumps(answer), flush=True)


def run(task: dict, part: str, out: str) -> None:
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    environment.get_config().set("parallelism.default", str(task["workers"]))
    environment.get_config().set("table.exec.source.idle-timeout", "1 s")
    environment.get_config().set("table.local-time-zone", "UTC")
    for stream in task["streams"]:
        environment.execute_sql(source(stream, stream[part]))
    statements = environment.create_statement_set()
    for number, query in enumerate(task["queries"]):
        columns = ", ".join(f"`{name}` {kind}" for name, kind in query["columns"])
        sink = "'connector' = 'blackhole'"
        if not task.get("discard"):
            os.makedirs(f"{out}-{number}")
            sink = f"'connector' = 'filesystem', 'path' = 'file://{out}-{number}', 'format' = 'csv'"
        environment.execute_sql(f"CREATE TABLE out_{number} ({columns}) WITH ({sink})")
        statements.add_insert_sql(f"INSERT INTO out_{number} {query['sql']}")
    statements.execute().wait()


def refusals(task: dict) -> dict:
    """What Flink's planner says to each statement; None where it has a plan."""
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for stream in task["streams"]:
        environment.execute_sql(source(stream, "/nowhere"))
    answers = {}
    for name, sql in task["refusals"].items():
        try:
            environment.explain_sql(sql)
            answers[name] = None
        except Exception as error:
            answers[name] = str(error).splitlines()[0]
    return answers


def source(stream: dict, path: str) -> str:
    when = stream["time"]
    columns = ", ".join(f"{name} {kind}" for name, kind in stream["columns"])
    primary = f", PRIMARY KEY ({stream['key']}) NOT ENFORCED" if stream["key"] else ""
    return (
        f"CREATE TABLE {stream['name']} ({columns}, {when}_at AS TO_TIMESTAMP_LTZ({when}, 3), "
        f"WATERMARK FOR {when}_at AS {when}_at{primary}) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')"
    )


if __name__ == "__main__":
    main()
