"""``python -m provisioner.cli``: the command without its script."""

import sys

from provisioner.cli import main

sys.exit(main())
