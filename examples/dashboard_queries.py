"""Many queries from a dashboard: each panel is an SQL join that is created when it opens and dropped when it closes.

The queries share the streams, their windows and common joins, so that a panel costs little. Run it with
`python examples/dashboard_queries.py`; the flights and the weather are real and part of the package.
"""

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
engine = sj.adhoc.Engine()
engine.register("flights", schema=flights.schema, time="scheduled")
engine.register("weather", schema=weather.schema, time="observed")


def panel(airport: str, visibility: int, delay: int) -> str:
    """The SQL of one panel: late flights of an airport while little can be seen there."""
    return (
        "SELECT f.carrier, f.flight, f.delay, w.visibility FROM flights f JOIN weather w WITHIN 30 MINUTES "
        f"ON f.airport = w.airport WHERE f.airport = '{airport}' AND w.visibility < {visibility} AND f.delay > {delay}"
    )


with engine:
    # Sixty panels: three airports, five visibilities, four delays.
    for airport in ("EWR", "JFK", "LGA"):
        for visibility in (1, 2, 3, 5, 8):
            for delay in (0, 15, 30, 60):
                engine.create(panel(airport, visibility, delay), name=f"{airport}-{visibility}-{delay}")

    times = {"flights": "scheduled", "weather": "observed"}
    for day, batch in enumerate(sj.data.replay({"flights": flights, "weather": weather}, times, every="1 day"), 1):
        engine.push_all(batch)
        if day == 16:
            # Half of the panels are closed and one is opened: both take effect between two batches.
            for query in engine.queries():
                if query.name.endswith(("-15", "-30")):
                    engine.drop(query.name)
            engine.create(panel("JFK", 2, 120), name="JFK-2-120")

    queries = {query.name: query for query in engine.queries()}
    # One step for new flights and one for new observations serve all of them.
    print(f"{len(queries)} panels are open and share {len(engine.explain().roots)} steps")
    for name in ("EWR-2-60", "JFK-2-60", "LGA-2-60", "JFK-2-120"):
        print(f"{name}: {queries[name].rows:,} rows")
