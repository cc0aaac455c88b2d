// What JupyterLab asks of a prebuilt extension, by hand: it names itself, and gives a style.
(() => {
  const sheet = new URL('style.css', document.currentScript.src).href;
  const link = () => {
    const element = document.createElement('link');
    element.rel = 'stylesheet';
    element.href = sheet;
    document.head.append(element);
    return {};
  };
  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB['course-style'] = { init: () => {}, get: async () => link };
})();
