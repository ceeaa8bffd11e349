"""Requests, streams and answers as rich renderables, for a terminal or a notebook.

`text` (names on one line), `answers` (probabilities as bars), `tree` (a request forks), `stream` (the rows of a
round), `comparison` (forked against alone), `results` (small tables from the records of experiments).
"""
