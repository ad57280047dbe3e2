// A table of the paths of packets between gateways: the map, a site and a gateway show it.

import { h, table } from "./dom.js";
import { ago, bytes, visible } from "./format.js";
import { badge, link } from "./gateway.js";
import { ofPath, roundTrip, way } from "./paths.js";

const HEADS = ["From", "To", "Path", "Way", "Round trip", "Loss", "Sent", "Received", "Last handshake", "Why not direct"];

export function pathTable(paths) {
  const rows = paths.map((path) => [
    link("gateway", path.gateway), link("gateway", path.peer), badge(ofPath(path)), visible(way(path)), roundTrip(path),
    path.lossPercent != null ? `${path.lossPercent} %` : "–", bytes(path.sentBytes), bytes(path.receivedBytes),
    path.lastHandshake ? ago(path.lastHandshake) : "–", visible(path.notDirect ?? ""),
  ]);
  return h("div", null, table("Paths of packets between gateways", HEADS, rows, "No gateway tells of a path."));
}
