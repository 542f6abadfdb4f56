"""Optuna: search two settings of the agent by its return on validation instances.

python examples/integrations/optuna_search.py
"""

import gymnasium
import optuna
from esper_agent import FactoredRecurrentPPO
from esper_agent.evaluation.paired import make_test_env, play

EPISODES, STEPS = 8, 240
held_out = make_test_env("esper_env:Esper-v0", EPISODES, instances="validation", horizon=15)


def objective(trial):
    """The mean return of an agent with the settings of a trial."""
    env = gymnasium.make_vec("Esper-v0", num_envs=8, autoreset_mode="same_step", output="torch", horizon=15)
    settings = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        "n_epochs": trial.suggest_int("n_epochs", 2, 8),
    }
    agent = FactoredRecurrentPPO(env, n_steps=15, sequence_length=15, seed=0, **settings)
    agent.learn(STEPS)
    return play(agent, held_out, seed=10_000).discounted_return.mean()


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=2)
print(f"best return {study.best_value:.3f} with {study.best_params}")
