"""Krylov methods: Lanczos eigenvalues and stochastic Lanczos quadrature."""

from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues
from hessblocks.linalg.spectra.spectrum import Spectrum, jensen_shannon_distance, spectral_density
