"use strict";
// graphile-worker: `program.js fill` makes its schema and adds jobs in batches, `program.js work` is a worker, `program.js
// ask` adds one job after the other.

const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { asked, items, load, main, moment, ready, record, store } = require("../load.js");

const BATCH = 1000;
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

const ADD = `
  SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT json_populate_record(NULL::graphile_worker.job_spec, spec) FROM json_array_elements($1::json) AS spec
  ))`;

/** Add all jobs; those of a registry are lines of the crontab and not stored. */
async function fill() {
  const utils = await makeWorkerUtils({ connectionString: store, logger });
  await utils.migrate();
  const specs = ["registry", "run_now"].includes(load.workload) ? [] : items().map(spec);
  for (let at = 0; at < specs.length; at += BATCH) {
    const batch = JSON.stringify(specs.slice(at, at + BATCH));
    await utils.withPgClient((client) => client.query(ADD, [batch]));
  }
  await utils.release();
}

const spec = ({ key, due }) => ({
  identifier: "run",
  payload: { key, due },
  run_at: due ? moment(due).toISOString() : undefined,
});

async function ask() {
  const utils = await makeWorkerUtils({ connectionString: store, logger });
  for await (const job of asked()) await utils.addJob("run", job);
  await utils.release();
}

/** Run what is due, with 10 at once. */
async function work() {
  const size = Number(process.env.BENCH_LOCAL_QUEUE ?? 0);
  const batched = size ? { localQueue: { size }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};
  const lines = items().map(({ key }) => `0 0 1 1 * run ?id=${key}`);
  const runner = await run({
    preset: { worker: { connectionString: store, concurrentJobs: 10, ...batched } },
    logger,
    taskList: { run: ({ key, due }) => record(key, due) },
    crontab: load.workload === "registry" ? lines.join("\n") : "",
  });
  ready();
  await runner.promise;
}

main({ fill, work, ask });
