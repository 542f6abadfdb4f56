"""What hosts learn."""

from esper_env.tasks import cifar10, digits, fashion_mnist, text
from esper_env.tasks.arrays import task_from_arrays
from esper_env.tasks.base import TASKS, Data, Split, Task

__all__ = ["TASKS", "Data", "Split", "Task", "cifar10", "digits", "fashion_mnist", "task_from_arrays", "text"]
