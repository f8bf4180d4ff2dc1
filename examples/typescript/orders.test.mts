// Run it: odradek run -- node --test orders.test.mts
// Node before 22.18 needs it compiled: tsc --module nodenext --target es2022 orders.test.mts
import assert from "node:assert/strict";
import { test } from "node:test";

const base64 = (text: string) => Buffer.from(text).toString("base64");

async function api(method: string, path: string, body?: object): Promise<any> {
  const headers = { Authorization: `Bearer ${process.env.ODRADEK_TOKEN}` };
  const url = `${process.env.ODRADEK_URL}/v1/${path}`;
  const response = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
  const answer: any = await response.json();
  assert.equal(response.status, 200, `${method} ${path}: ${answer.error}`);
  return answer;
}

test("records are appended and read", async () => {
  await api("POST", "topics", { name: "orders" });
  await api("POST", "records", { topic: "orders", records: [{ key: base64("A1"), value: base64("new") }] });
  const { records } = await api("GET", "records?topic=orders");
  assert.deepEqual(records.map((each: any) => [each.offset, each.value]), [[0, base64("new")]]);
});

test("a fault is set and removed", async () => {
  const fault = { api: "Produce", error: "NOT_LEADER_OR_FOLLOWER", topic: "orders", times: 2 };
  const { id } = await api("POST", "faults", fault);
  const { faults } = await api("GET", "faults"); // An application at KAFKA_BOOTSTRAP_SERVERS would make hits.
  assert.deepEqual(faults.map((each: any) => [each.id, each.hits]), [[id, 0]]);
  await api("DELETE", `faults/${id}`);
});

test("retention deletes what is two hours old", async () => {
  await api("POST", "topics", { name: "short", config: { "retention.ms": 3_600_000 } });
  await api("POST", "records", { topic: "short", records: [{ value: base64("old") }] });
  await api("POST", "clock", { advance_ms: 2 * 3_600_000 });
  assert.deepEqual((await api("GET", "records?topic=short")).records, []);
});
