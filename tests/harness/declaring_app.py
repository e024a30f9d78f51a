"""The app of the tests, which also declares a task whose row wrong SQL spoils."""

from tests.harness.apps import app

app.schedule("victim-declared", "HOLD", cron="0 3 1 1 *")
