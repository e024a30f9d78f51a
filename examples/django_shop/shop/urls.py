"""The shop's addresses."""

from django.contrib import admin
from django.urls import path
from promotions import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("promotions", views.promotions),
    path("promotions/<int:product>", views.promotion),
    path("receipts", views.receipts),
    path("receipts/<str:result>", views.receipt),
]
