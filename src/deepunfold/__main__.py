"""``python -m deepunfold``."""

from deepunfold.cli import main

main()
