"""`python -m flide_jax` is the command `flide-jax`."""

import sys

from flide_jax.cli import main

sys.exit(main())
