// Python in a worker: the page stays usable while it loads.
import { loadPyodide } from "./pyodide.mjs";

const ready = (async () => {
  const here = new URL(".", import.meta.url).href;
  const zip = fetch(`${here}course.zip`).then((answer) => answer.arrayBuffer());
  const python = await loadPyodide({ indexURL: here });
  python.unpackArchive(await zip, "zip", { extractDir: "/home/pyodide" });
  return python.runPython("from course_lib.site.live import move; move");
})();

onmessage = async ({ data: { key, source, values } }) => {
  try {
    const move = await ready;
    postMessage({ key, told: JSON.parse(move(key, source, JSON.stringify(values))) });
  } catch (problem) {
    postMessage({ key, failed: String(problem).trim().split("\n").pop() });
  }
};
