"""The kinds of join beyond inner: what happens between an algorithm's pairs and the gathered rows."""
