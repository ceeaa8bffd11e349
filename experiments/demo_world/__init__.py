"""The demo model's world: short stories, customers' messages and commands, with questions whose answers are known.

Everything is drawn from a seed. A tenth of the combinations (a story's cast, a message's phrase and product, a
command's text) is held out: it never occurs in training.
"""

from .asking import WHO as WHO
from .asking import Asked as Asked
from .asking import Example as Example
from .stories import KINDS as KINDS
from .stories import Difficulty as Difficulty
from .world import LONGEST as LONGEST
from .world import DemoWorld as DemoWorld
