"""What hosts learn."""

from esper_env.tasks import digits, text
from esper_env.tasks.base import TASKS, Data, Split, Task

__all__ = ["TASKS", "Data", "Split", "Task", "digits", "text"]
