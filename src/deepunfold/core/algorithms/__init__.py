"""Algorithms that ship with the framework, as use and as proof: one short file each."""

from deepunfold.core.algorithms.admm import ADMM
from deepunfold.core.algorithms.fista import FISTA
from deepunfold.core.algorithms.gradient_descent import GradientDescent
from deepunfold.core.algorithms.ista import ISTA, LISTA
from deepunfold.core.algorithms.mixture import VariationalMixture

__all__ = ["ADMM", "FISTA", "ISTA", "LISTA", "GradientDescent", "VariationalMixture"]
