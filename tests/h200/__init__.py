"""What a compiler can say about an NVIDIA H200 on a machine that has none: that programs compile, and into what.

compiler           cards as XLA describes them, and compilation for one
programs           every Pallas kernel at the sizes of released models, and four layers of two of them; each by a name
building           one of these compiled in a process of its own, and what came out
triton_programs    the Triton kernels, for an A100 too, which has no others

No choice that is made by timing is seen, nor is any time.
"""
