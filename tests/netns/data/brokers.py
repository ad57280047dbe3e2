#!/usr/bin/env python3
# A cluster of Kafka with three brokers on loopback, as librdkafka plays it: the library that kcat comes with.
# Prints the brokers as HOST:PORT,... in one line; each leads a third of the topic's partitions. Then takes commands, one in a
# line, and answers each with "ok": "down N" closes the connections of a broker and takes no new ones, "up N" lets it return with
# all that it had. Ends with its standard input.
# Usage: brokers.py TOPIC PARTITIONS
import ctypes
import sys

BROKERS = 3
topic, partitions = sys.argv[1].encode(), int(sys.argv[2])

library = ctypes.CDLL("librdkafka.so.1")
for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
    getattr(library, name).restype = ctypes.c_void_p
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p

words = ctypes.create_string_buffer(512)
PRODUCER = 0
kafka = library.rd_kafka_new(PRODUCER, ctypes.c_void_p(library.rd_kafka_conf_new()), words, ctypes.c_size_t(512))
if not kafka:
    sys.exit(f"no librdkafka: {words.value.decode()}")
cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(ctypes.c_void_p(kafka), BROKERS))


def check(error):
    if error:
        sys.exit(f"librdkafka says {error}")


check(library.rd_kafka_mock_topic_create(cluster, topic, partitions, BROKERS))
for partition in range(partitions):
    check(library.rd_kafka_mock_partition_set_leader(cluster, topic, partition, partition % BROKERS + 1))
print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)

for line in sys.stdin:
    what, broker = line.split()
    change = {"down": library.rd_kafka_mock_broker_set_down, "up": library.rd_kafka_mock_broker_set_up}[what]
    check(change(cluster, int(broker)))
    print("ok", flush=True)
