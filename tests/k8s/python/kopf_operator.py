# An operator on EServices, run by kopf: a finalizer, a condition in the status, a timer, and events.
# Written as kopf's documentation writes operators; nothing in it is made for Causeway but the kind.
import datetime
import logging

import kopf

KIND = ("causeway.io", "v1", "eservices")


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    settings.posting.level = logging.INFO
    # So that a test does not wait for the defaults of ten minutes and a minute.
    settings.watching.reconnect_backoff = 0.2
    settings.networking.error_backoffs = [0.2, 0.5, 1, 2, 5]


@kopf.on.create(*KIND)
def created(body, status, patch, name, **_):
    others = [dict(condition) for condition in status.get("conditions", []) if condition["type"] != "Seen"]
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    seen = {"type": "Seen", "status": "True", "reason": "ByOperator", "message": name, "lastTransitionTime": now}
    patch.status["conditions"] = others + [seen]
    kopf.info(body, reason="Greeted", message=f"the operator has seen {name}")


@kopf.on.update(*KIND, field="port")
def moved(body, old, new, **_):
    kopf.warn(body, reason="Moved", message=f"from port {old} to port {new}")


@kopf.timer(*KIND, interval=0.5)
def tick(annotations, patch, **_):
    patch.metadata.annotations["example.com/ticks"] = str(int(annotations.get("example.com/ticks", "0")) + 1)


@kopf.on.delete(*KIND)
def deleted(body, name, **_):
    kopf.info(body, reason="Farewell", message=f"the operator lets {name} go")
