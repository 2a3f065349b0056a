"""Outer joins: orders with their payments, and the orders that nobody paid within a minute.

Run it with `python examples/unpaid_orders.py`.
"""

import streamjoin as sj

orders = [
    {"order": "tea", "t": 0},
    {"order": "coffee", "t": 10},
    {"order": "milk", "t": 15},
]
payments = [
    {"order": "coffee", "t": 30, "paid": 4.50},
    {"order": "cake", "t": 80, "paid": 3.20},
]


def main() -> None:
    for how in ("left", "full", "semi", "anti"):
        spec = sj.JoinSpec(
            on=sj.Equi("order"),
            window=sj.TimeWindow(60),  # an order can be paid for a minute
            time="t",
            order="event_time",
            how=how,
        )
        with sj.open(spec) as join:
            join.push(orders, payments)
            # The clocks go on although nothing happens: unpaid orders come out when their minute has passed.
            rows = join.advance(75).to_pylist()
            late = join.close().to_pylist()
        print(f"{how}: after 75 s {texts(rows)}; at the end {texts(late)}")


def texts(rows: list[dict[str, object]]) -> str:
    """The rows in words."""
    return (
        ", ".join(f"{row['order']} {row['paid'] or 'unpaid'}" if "paid" in row else str(row["order"]) for row in rows)
        or "nothing"
    )


if __name__ == "__main__":
    main()
