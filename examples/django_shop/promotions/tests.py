"""The shop's own tests. Django makes a database for them, and Rota's tables in it."""

from django.test import TestCase, TransactionTestCase

from promotions.models import Promotion
from rota.integrations.django import client
from rota.integrations.django.models import Request


class PromotionsTest(TestCase):
    """Each in a transaction that Django rolls back: what is asked for is rolled back with it."""

    def test_its_end_is_asked_for(self) -> None:
        """The request is there, in the test's own transaction."""
        self.client.put("/promotions/42?until=2099-12-24T20:00")
        [asked] = Request.objects.all()
        self.assertEqual((asked.type, asked.number, asked.param), ("END_PROMOTION", "product-42", {"product": 42}))

    def test_a_bad_time_leaves_no_promotion(self) -> None:
        """Both, or neither."""
        answer = self.client.put("/promotions/42?until=soon")
        self.assertEqual((answer.status_code, Promotion.objects.count(), Request.objects.count()), (422, 0, 0))


class CommittedTest(TransactionTestCase):
    """With real commits, as in the app."""

    def test_a_run_is_there_at_once(self) -> None:
        """Outside of a transaction nothing has to wait for a commit."""
        told = client.once("END_PROMOTION", key="product-1", at="2099-12-24T20:00", param={"product": 1})
        self.assertEqual(client.instances.show(told["instance_id"])["status"], "pending")
