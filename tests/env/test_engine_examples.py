"""The worked examples that plans and passes start with hold, to the last number."""

import doctest

from esper_env.population import passes, plan


def test_the_worked_example_of_plans_goes_on_in_passes() -> None:
    runner, example = doctest.DocTestRunner(), {**vars(plan), **vars(passes)}
    for module in (plan, passes):
        text = doctest.DocTestParser().get_doctest(module.__doc__ or "", example, module.__name__, None, None)
        example = text.globs
        assert text.examples
        runner.run(text, clear_globs=False)
    assert runner.failures == 0
