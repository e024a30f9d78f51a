"use strict";
// What benchmarks/load.py and benchmarks/record.py are to the Python peers. Times are seconds since the epoch.

const fs = require("node:fs");
const path = require("node:path");

const [workload, count, due, step] = process.env.BENCH_LOAD.split(" ");

exports.load = { workload, count: Number(count), due: Number(due), step: Number(step) };
exports.store = process.env.BENCH_STORE;

/** Names and due times, in order. */
exports.items = () =>
  Array.from({ length: exports.load.count }, (_, number) => ({
    key: `t${number}`,
    due: exports.load.due + number * exports.load.step,
  }));

/** A due time as a Date; 0: now. */
exports.moment = (due) => (due ? new Date(Math.round(due * 1000)) : new Date());

const now = () => (performance.timeOrigin + performance.now()) / 1000;

/** What load.asked is to the Python peers: a job after each pause, due at the moment of the question. */
exports.asked = async function* () {
  for (let number = 0; number < exports.load.count; number++) {
    await new Promise((resolve) => setTimeout(resolve, 300 + ((number * 0.618034) % 1) * 1000));
    yield { key: `t${number}`, due: now() };
  }
};

let file;
let lines = [];

const write = () => {
  file ??= fs.openSync(path.join(process.env.BENCH_RECORDS, String(process.pid)), "a");
  fs.writeSync(file, lines.join(""));
  lines = [];
};

/** Append a line: what ran, when it was due (0: at no time), when its handler was entered. A write each 10 ms. */
exports.record = (key, due) => {
  const entered = now();
  if (lines.push(`${key} ${due.toFixed(6)} ${entered.toFixed(6)}\n`) === 1) setTimeout(write, 10);
};

/** Tell that this process is at work. */
exports.ready = () => console.log("bench: ready");

/** Run the program of this name, the only argument. */
exports.main = (programs) =>
  programs[process.argv[2]]().catch((error) => {
    console.error(error);
    process.exit(1);
  });
