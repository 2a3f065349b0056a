"""As-of joins: every trade with the quote that was valid then, the next one, and the nearest.

Run it with `python examples/trades_as_of_quotes.py`.
"""

import streamjoin as sj

trades = [
    {"sym": "A", "t": 10, "px": 10.0},
    {"sym": "B", "t": 11, "px": 5.1},
    {"sym": "A", "t": 20, "px": 10.2},
]
quotes = [
    {"sym": "A", "t": 4, "bid": 9.9},
    {"sym": "A", "t": 12, "bid": 10.1},
    {"sym": "B", "t": 14, "bid": 5.0},
]


def main() -> None:
    for direction in ("backward", "forward", "nearest"):
        spec = sj.JoinSpec(
            on=sj.Equi("sym"),
            match=sj.AsOf(direction, tolerance=9),  # at most 9 seconds apart
            time="t",
            order="event_time",
            how="left",
        )
        with sj.open(spec) as join:
            rows = join.push(trades, quotes).to_pylist() + join.close().to_pylist()
        print(f"{direction}: " + ", ".join(f"{row['sym']} {row['px']} at bid {row['bid']}" for row in rows))

    # In arrival order: the newest quote that is there when the trade comes.
    spec = sj.JoinSpec(on=sj.Equi("sym"), match=sj.AsOf(), how="left")
    with sj.open(spec) as join:
        join.push(right=quotes)
        rows = join.push(left=trades).to_pylist()
    print("now: " + ", ".join(f"{row['sym']} {row['px']} at bid {row['bid']}" for row in rows))


if __name__ == "__main__":
    main()
