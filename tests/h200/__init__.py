"""What a compiler can say about an NVIDIA H200 on a machine that has none: that programs compile, and into what.

compiler    the card as XLA describes one, and compilation for it
programs    every kernel at the sizes of released models, and four layers of two of them; each by a name
building    one of these compiled in a process of its own, and what came out

No choice that is made by timing is seen, nor is any time.
"""
