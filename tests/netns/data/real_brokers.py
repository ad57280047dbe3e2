#!/usr/bin/env python3
# Three brokers of Apache Kafka on loopback, with the ZooKeeper that comes along, for the same tests as brokers.py, and by the
# same commands: "down N" kills a broker, "up N" starts it again on its data. Needs java, and Kafka from 0.9 to 2.1 in a folder.
# Usage: real_brokers.py TOPIC PARTITIONS FOLDER
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

topic, partitions, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
data = tempfile.TemporaryDirectory()
home = Path(data.name)
ZOOKEEPER = 12181
PORTS = {broker: 19090 + broker for broker in (1, 2, 3)}
PATIENCE = 90
SESSION_MS = 2000


def java(*arguments):
    # They end with this program, however it ends.
    command = ["setpriv", "--pdeathsig", "KILL", "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dlog4j.configuration=file:{folder}/config/tools-log4j.properties", "-cp", f"{folder}/libs/*"]
    return subprocess.Popen(command + list(arguments), stdin=subprocess.DEVNULL, stdout=sys.stderr)


def await_port(port):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > end:
                sys.exit(f"nobody listens on {port}")
            time.sleep(0.05)


def write(name, **settings):
    path = home / f"{name}.properties"
    path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()))
    return str(path)


def start(broker):
    settings = {
        "broker_id": broker, "listeners": f"PLAINTEXT://127.0.0.1:{PORTS[broker]}", "log_dirs": home / f"broker-{broker}",
        "zookeeper_connect": f"127.0.0.1:{ZOOKEEPER}", "zookeeper_session_timeout_ms": SESSION_MS,
        # So that the group's coordinator moves on when its broker is down.
        "offsets_topic_replication_factor": 3, "offsets_topic_num_partitions": 3,
        "group_max_session_timeout_ms": 60000, "log_cleaner_dedupe_buffer_size": 4 << 20, "num_io_threads": 2, "num_network_threads": 2,
    }
    process = java("kafka.Kafka", write(f"broker-{broker}", **settings))
    await_port(PORTS[broker])
    return process


java("org.apache.zookeeper.server.quorum.QuorumPeerMain",
     write("zookeeper", dataDir=home / "zookeeper", clientPort=ZOOKEEPER, tickTime=500, maxClientCnxns=0))
await_port(ZOOKEEPER)
brokers = {broker: start(broker) for broker in PORTS}
leaders = ",".join(str(partition % len(PORTS) + 1) for partition in range(partitions))
created = java("kafka.admin.TopicCommand", "--zookeeper", f"127.0.0.1:{ZOOKEEPER}", "--create", "--topic", topic,
               "--replica-assignment", leaders)
if created.wait(PATIENCE):
    sys.exit(f"no topic {topic}")
print(",".join(f"127.0.0.1:{port}" for port in PORTS.values()), flush=True)

for line in sys.stdin:
    what, broker = line.split()
    if what == "down":
        brokers[int(broker)].kill()
        brokers[int(broker)].wait()
        killed = time.monotonic()
    else:
        # As long as ZooKeeper takes the dead one for alive, it cannot return.
        time.sleep(max(0, killed + 2 * SESSION_MS / 1000 - time.monotonic()))
        brokers[int(broker)] = start(int(broker))
    print("ok", flush=True)
