"""The table of promotions."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Promotion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("product", models.IntegerField(unique=True)),
                ("until", models.DateTimeField()),
                ("ended", models.BooleanField(default=False)),
            ],
        ),
    )
