"""Figures with matplotlib (extra `plot`), for notebooks and reports; each function gives a `Picture`.

`style` (colours, and what a picture is), `tree` (requests and their questions), `stream` (rows and positions of a
round), `attention` (masks and tiles), `recurrence` (chunks, slots and convolution windows), `exactness` (differences),
`growth` (steps and pages of growing states), `results` (from the records of experiments).
"""
