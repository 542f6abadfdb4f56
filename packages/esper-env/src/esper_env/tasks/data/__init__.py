"""Real data on disk: which files a data set has, how they get there, and how they are read."""

from esper_env.tasks.data.datasets import DATASETS, DataFile, Dataset, data_directory
from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.fetching import fetch
from esper_env.tasks.data.importing import install

__all__ = ["DATASETS", "DataError", "DataFile", "Dataset", "data_directory", "fetch", "install"]
