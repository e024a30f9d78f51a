"""Django's settings. The database is MariaDB or MySQL if ``SHOP_DB_NAME`` is set, otherwise a file of SQLite."""

import importlib.util
import os
from pathlib import Path

import django
import pymysql
from django.core.management.utils import get_random_secret_key

pymysql.version_info = (2, 2, 7, "final", 0)  # Django asks for mysqlclient; PyMySQL, which Rota uses, does as well
pymysql.install_as_MySQLdb()

DEBUG = os.environ.get("SHOP_DEBUG") == "1"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY") or get_random_secret_key()  # without one, a restart ends all sessions
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

if name := os.environ.get("SHOP_DB_NAME"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.mysql",
            "NAME": name,
            "USER": os.environ.get("SHOP_DB_USER", "root"),
            "PASSWORD": os.environ.get("SHOP_DB_PASSWORD", ""),
            "HOST": os.environ.get("SHOP_DB_HOST", "127.0.0.1"),
            "PORT": os.environ.get("SHOP_DB_PORT", "3306"),
            "CONN_MAX_AGE": None,
            "TEST": {"NAME": f"{name}_test"},
        }
    }
else:
    file = os.environ.get("SHOP_DB_FILE") or Path(__file__).parents[1] / "shop.sqlite3"
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": file,
            "OPTIONS": {"transaction_mode": "IMMEDIATE"} if django.VERSION >= (5, 1) else {},
            "TEST": {"NAME": f"{file}.test"},
        }
    }

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rota.integrations.django",
    "promotions",
]
if importlib.util.find_spec("django.tasks") is None:  # before Django 6
    INSTALLED_APPS += ["django_tasks"]

TASKS = {"default": {"BACKEND": "rota.integrations.django.backend.RotaBackend"}}

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
