"use strict";
// pg-boss: `program.js fill` makes its schema and inserts jobs in batches, `program.js work` is a worker, `program.js
// fetch` one that calls fetch() itself, `program.js ask` sends one job after the other.

const PgBoss = require("pg-boss");
const { asked, items, load, main, moment, ready, record, store } = require("../load.js");

const QUEUE = "run";
const BATCH = 1000;
const PAUSE_MS = 50;

async function started() {
  const boss = new PgBoss(store);
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

async function fill() {
  const boss = await started();
  await boss.createQueue(QUEUE);
  const jobs = (load.workload === "run_now" ? [] : items()).map(({ key, due }) => ({
    name: QUEUE,
    data: { key, due },
    startAfter: due ? moment(due) : undefined,
  }));
  for (let at = 0; at < jobs.length; at += BATCH) {
    await boss.insert(jobs.slice(at, at + BATCH));
  }
  await boss.stop({ graceful: false });
}

async function ask() {
  const boss = await started();
  for await (const { key, due } of asked()) await boss.send(QUEUE, { key, due });
  await boss.stop({ graceful: false });
}

async function work() {
  const boss = await started();
  await boss.work(QUEUE, { batchSize: BATCH, pollingIntervalSeconds: 0.5 }, async (jobs) => {
    for (const { data } of jobs) record(data.key, data.due);
  });
  ready();
}

/** Its own loop around fetch(), which work() is too, but with a pause only when there was nothing (or an error: fetch() hides it). */
async function fetch() {
  const boss = await started();
  ready();
  for (;;) {
    const jobs = await boss.fetch(QUEUE, { batchSize: BATCH });
    for (const { data } of jobs) record(data.key, data.due);
    if (jobs.length) await boss.complete(QUEUE, jobs.map(({ id }) => id));
    else await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

main({ fill, work, fetch, ask });
