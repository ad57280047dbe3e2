# What the official Python client does with a cloud: discovery, list, write, watch, errors.
# Takes a kubeconfig; prints "ok: SENTENCE" per row and ends with an exception at the first that is not true.
import sys

from kubernetes import config, dynamic
from kubernetes.client.rest import ApiException

client = dynamic.DynamicClient(config.new_client_from_config(sys.argv[1]))
sites = client.resources.get(api_version="causeway.io/v1", kind="ESite")


def row(sentence, holds, *shown):
    if not holds:
        raise AssertionError(f"{sentence}: {shown}")
    print(f"ok: {sentence}", flush=True)


def refused(action):
    try:
        action()
    except ApiException as refusal:
        return refusal
    raise AssertionError("nothing was refused")


def site(name, **fields):
    return {"apiVersion": "causeway.io/v1", "kind": "ESite", "metadata": {"name": name}, **fields}


kinds = ["ESite", "EGateway", "EService", "EServer", "EPolicy", "ServiceExpose", "VirtualPresence", "ECommunity"]
found = [client.resources.get(api_version=version, kind=kind) for version in ("causeway.io/v1", "v1") for kind in kinds]
row("discovery finds every kind in both groups", len(found) == 16 and not any(kind.namespaced for kind in found))

made = sites.create(body=site("Oslo", subnets=["10.1.0.0/16"]))
read = sites.get(name="Oslo")
row("an object is created and read back", read.metadata.uid == made.metadata.uid and read.subnets == ["10.1.0.0/16"], read)

listed = sites.get()
start = listed.metadata.resourceVersion
row("a list has a resourceVersion", int(start) > 0 and {item.metadata.name for item in listed.items} == {"Oslo", "cloud"})

names, token = [], None
while True:
    page = sites.get(limit=1, **({"_continue": token} if token else {}))
    names += [item.metadata.name for item in page.items]
    token = page.metadata["continue"]
    if not token:
        break
row("pages make the same list", names == ["Oslo", "cloud"], names)

patched = sites.patch(name="Oslo", body={"subnets": ["10.2.0.0/16"]}, content_type="application/merge-patch+json")
row("a merge patch changes the object", patched.subnets == ["10.2.0.0/16"], patched)

applied = sites.server_side_apply(body=site("Bergen", subnets=["10.3.0.0/16"]), field_manager="story")
row("server-side apply is taken", applied.metadata.managedFields[0].manager == "story", applied)

sites.delete(name="Bergen")
# Of each object the writes of this story, in their order; the reconciler's own writes come in between.
expected = [("MODIFIED", "Oslo"), ("ADDED", "Bergen"), ("DELETED", "Bergen")]
seen, versions = [], []
for event in sites.watch(resource_version=start, timeout=60):
    what = (event["type"], event["object"].metadata.name)
    versions.append(int(event["object"].metadata.resourceVersion))
    if what == expected[len(seen)] and (what[0] != "MODIFIED" or event["object"].subnets == ["10.2.0.0/16"]):
        seen.append(what)
    if seen == expected:
        break
row("a watch sees every change in order", versions == sorted(set(versions)), versions)

again = []
for event in sites.watch(resource_version=str(versions[0]), timeout=60):
    again.append(int(event["object"].metadata.resourceVersion))
    if again[-1] >= versions[-1]:
        break
row("a watch resumes after a resourceVersion", again == versions[1:], versions, again)

refusal = refused(lambda: sites.create(body=site("Roma", subnets=["nonsense"])))
row("a refusal is an ApiException with a Status", refusal.status == 422 and b"subnets[0]" in refusal.body, refusal.body)
old = sites.get(name="Oslo").to_dict()
sites.patch(name="Oslo", body={"subnets": ["10.4.0.0/16"]}, content_type="application/merge-patch+json")
refusal = refused(lambda: sites.replace(body=old))
row("a conflict is an ApiException", refusal.status == 409 and b"Conflict" in refusal.body, refusal.body)

condition = {"type": "Painted", "status": "True", "reason": "ByHand", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
painted = sites.status.patch(name="Oslo", body={"status": {"conditions": [condition]}}, content_type="application/merge-patch+json")
row("the status has its own door", any(c.type == "Painted" for c in painted.status.conditions), painted)

sites.delete(name="Oslo")
row("objects are deleted", refused(lambda: sites.get(name="Oslo")).status == 404)
