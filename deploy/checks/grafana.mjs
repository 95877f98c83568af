#!/usr/bin/env node
// Checks the dashboards against Grafana's published types: every field of the dashboard, of each panel's
// options and of each query has to exist there and have the right type.
//
// usage: grafana.mjs DIRECTORY  (where @grafana/schema and typescript are installed)
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const packages = resolve(process.argv[2] ?? '.');
const ts = createRequire(join(packages, 'package.json'))('typescript');
const dashboards = join(dirname(fileURLToPath(import.meta.url)), '../grafana/dashboards');

const HEAD = `
import type { Dashboard, DataQuery, RowPanel } from '@grafana/schema';
import type { Options as StatOptions } from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as TimeSeriesOptions, FieldConfig } from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
// In JSON an enum is its value.
type Plain<T> = T extends string ? \`\${T}\` : T extends number ? number : T extends boolean ? boolean
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
// Fields of a query to Prometheus; their type is in no published package.
type Target = Pick<Plain<DataQuery>, 'refId' | 'hide'> & { datasource: { type: 'prometheus'; uid: string };
  expr: string; legendFormat: string; range: boolean; instant: boolean; editorMode: 'code' | 'builder' };
type Rest = Omit<Plain<Dashboard>, 'panels'>;
type Panel = Plain<Extract<NonNullable<Dashboard['panels']>[number], { targets?: unknown }>>;
type Row = Plain<RowPanel>;
`;
const OPTIONS = { timeseries: 'TimeSeriesOptions', stat: 'StatOptions' };
const json = (it) => JSON.stringify(it);

const sources = [];
const folder = mkdtempSync(join(packages, 'check-'));
try {
  for (const file of readdirSync(dashboards).filter((it) => it.endsWith('.json'))) {
    const { panels, ...rest } = JSON.parse(readFileSync(join(dashboards, file), 'utf8'));
    const lines = [HEAD, `export const rest: Rest = ${json(rest)};`];
    panels.forEach((panel, index) => {
      if (panel.type === 'row') {
        lines.push(`export const row${index}: Row = ${json(panel)};`);
        return;
      }
      if (!(panel.type in OPTIONS)) throw new Error(`${file}: panels of type ${panel.type} are not checked`);
      const custom = panel.fieldConfig.defaults.custom;
      lines.push(`export const panel${index}: Panel = ${json(panel)};`);
      lines.push(`export const options${index}: Plain<${OPTIONS[panel.type]}> = ${json(panel.options)};`);
      lines.push(`export const targets${index}: Target[] = ${json(panel.targets)};`);
      if (custom) lines.push(`export const custom${index}: Plain<FieldConfig> = ${json(custom)};`);
    });
    const source = join(folder, file.replace('.json', '.ts'));
    writeFileSync(source, lines.join('\n'));
    sources.push(source);
  }
  if (sources.length === 0) throw new Error(`no dashboards in ${dashboards}`);
  const program = ts.createProgram(sources, {
    noEmit: true, strict: true, skipLibCheck: true, types: [],
    module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Node10, ignoreDeprecations: '5.0',
  });
  const found = ts.getPreEmitDiagnostics(program);
  for (const it of found.slice(0, 20)) {
    const at = it.file ? `${it.file.fileName.replace(folder, '')}: ${it.file.text.slice(it.start, it.start + 120)}\n  ` : '';
    console.log(at + ts.flattenDiagnosticMessageText(it.messageText, '\n  '));
  }
  if (found.length > 0) process.exitCode = 1;
  else console.log(`${sources.length} dashboards have the types of @grafana/schema`);
} finally {
  rmSync(folder, { recursive: true });
}
