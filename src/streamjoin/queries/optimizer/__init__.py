"""From queries and measured statistics to a plan: rules, each a pure function, in one order."""
