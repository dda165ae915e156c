// Browsers start no worker from a file. Where the site is opened from a folder, the search runs in a hidden frame instead.
"use strict";
(() => {
  class FolderWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.document.open();
      this.inside.document.write("<!doctype html><body></body>");
      this.inside.document.close();
      this.inside.postMessage = (data) => this.tell(this, MessageEvent, data);
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((done) => { script.onload = done; });
      script.src = url;
      this.inside.document.body.append(script);
    }

    tell(whom, Kind, data) {
      whom.dispatchEvent(new Kind("message", { data: structuredClone(data) }));
    }

    postMessage(data) {
      this.ready.then(() => this.tell(this.inside, this.inside.MessageEvent, data));
    }

    terminate() {
      this.frame.remove();
    }
  }

  if (location.protocol === "file:") window.Worker = FolderWorker;
})();
