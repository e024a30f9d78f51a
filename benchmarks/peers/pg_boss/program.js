"use strict";
// pg-boss: `program.js fill` makes its schema and inserts jobs in batches, `program.js work` is a worker.

const PgBoss = require("pg-boss");
const { items, main, moment, ready, record, store } = require("../load.js");

const QUEUE = "run";
const BATCH = 1000;

async function started() {
  const boss = new PgBoss(store);
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

async function fill() {
  const boss = await started();
  await boss.createQueue(QUEUE);
  const jobs = items().map(({ key, due }) => ({
    name: QUEUE,
    data: { key, due },
    startAfter: due ? moment(due) : undefined,
  }));
  for (let at = 0; at < jobs.length; at += BATCH) {
    await boss.insert(jobs.slice(at, at + BATCH));
  }
  await boss.stop({ graceful: false });
}

async function work() {
  const boss = await started();
  await boss.work(QUEUE, { batchSize: BATCH, pollingIntervalSeconds: 0.5 }, async (jobs) => {
    for (const { data } of jobs) record(data.key, data.due);
  });
  ready();
}

main({ fill, work });
