# Every target does its own set-up (tests/setup.sh). Options for pytest: make test ARGS="-k materializer -x"
# Three processes share the tests by file, also on two cores, as many of these mostly wait; ARGS="-n0" runs them in one. They
# take the files in the order of the alphabet, so that the last ones are those of tests/unit, which are short. Four share the
# long ones, which wait more. Those that calculate for minutes come first, so that none of them runs alone in the end.
.DEFAULT_GOAL := help
.PHONY: help up test test-long test-compose golden lint bench bench-quick
ARGS ?=
# The tests start hundreds of processes. Each would compile all of Rota anew if Python may not keep what it compiled.
test test-long test-compose: export PYTHONDONTWRITEBYTECODE :=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' Makefile

up: ## run a scheduler and a worker on this machine, with the example tasks
	@tests/setup.sh run
	.venv/bin/rota up --app examples.jobs:app

test: ## run the tests, on SQLite and on MariaDB
	@tests/setup.sh
	.venv/bin/pytest -m "not compose" --ignore tests/long -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

LONG = tests/unit/test_trigger_properties.py tests/unit/test_cron_properties.py tests/store/test_random_moves.py \
       tests/store/test_turns.py tests/long

test-long: ## run the long ones: kills under load, outages, a million tasks, simulated days, all random examples
	@tests/setup.sh long
	ROTA_TEST_EXAMPLES=all .venv/bin/pytest $(LONG) -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-compose: ## build the images and test them under Docker Compose
	@tests/setup.sh venv
	.venv/bin/pytest -m compose tests/compose $(ARGS)

golden: ## write down anew the statements that the hot paths execute; then read the diff
	@tests/setup.sh
	ROTA_WRITE_GOLDEN=1 .venv/bin/pytest -n0 -q tests/store/test_golden_statements.py

lint: ## check style and types
	@tests/setup.sh venv
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/mypy --package tests
	.venv/bin/mypy --package benchmarks

bench: ## run the whole benchmark, peers included, for hours, and write docs/benchmarks.md; interrupted, it goes on
	@tests/setup.sh bench
	.venv/bin/python -m benchmarks run; ran=$$?; .venv/bin/python -m benchmarks report && exit $$ran

bench-quick: ## a look at Rota's own figures in under 3 minutes
	@tests/setup.sh quick
	.venv/bin/python -m benchmarks run --scale quick
